"""What the kinds share that measure every cell in a process of its own: options, and carrying out their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.eval_store import open_store, store_option
from polykv.commands.options import chain
from polykv.commands.output import Output
from polykv.errors import ConfigError

if TYPE_CHECKING:
    from polykv.evals.campaign import Executor, Task
    from polykv.evals.result import Cell

campaign_options = chain(
    store_option,
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Processes at a time; 1 for sound speeds.",
    ),
    click.option("--cluster", metavar="ADDRESS", help='Run on a Ray cluster; "local" starts one here.'),
)


def carry_out(tasks: list[Task], values: dict[str, Any], output: Output) -> list[Cell]:
    """Cells of all tasks, in their order; one that failed has its settings `kv`, `ctx` and `role`, and an error."""
    from polykv.evals.campaign import run

    executor = _executor(values)
    with open_store(values["store"], output) as store, output.progress("measuring", unit="cell") as update:
        outcomes = run(tasks, executor, store, update)
    return [
        o if "error" not in o else {**{name: t.settings[name] for name in ("kv", "ctx", "role")}, **o}
        for t, o in zip(tasks, outcomes, strict=True)
    ]


def whole_name(model: str) -> str:
    """A model for a process that may have another current folder."""
    return str(Path(model).absolute()) if Path(model).is_file() else model


def factors(values: dict[str, Any], kv: str, layers: int) -> dict[str, Any]:
    """Codebooks and calibration that a pair is stored with: exact types go without."""
    from polykv.evals.arms import takes_codebooks, takes_factors

    found = {name: values[name] if takes_factors(kv, layers) else None for name in ("calibration", "calibration_v")}
    return {
        "codebooks": [str(Path(b).absolute()) for b in values["codebooks"]] if takes_codebooks(kv, layers) else [],
        **{name: None if path is None else str(Path(path).absolute()) for name, path in found.items()},
    }


def _executor(values: dict[str, Any]) -> Executor:
    if values["cluster"]:
        if values["workers"] > 1:
            raise ConfigError("--workers is for this machine; a --cluster runs a cell on each of its machines")
        from polykv.evals.executor_ray import RayCluster

        return RayCluster(values["cluster"])
    from polykv.evals.executor import LocalProcesses

    return LocalProcesses(values["workers"])
