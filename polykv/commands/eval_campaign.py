"""What the kinds share that measure every cell in a process of its own: options, and carrying out their tasks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.options import chain
from polykv.commands.output import Output
from polykv.errors import ConfigError

if TYPE_CHECKING:
    from polykv.evals.campaign import Executor, Task
    from polykv.evals.result import Cell

campaign_options = chain(
    click.option(
        "--store",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Keep cells here as they are done; what is there is not measured again.",
    ),
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
    from polykv.evals.store import Store, alone

    executor, path = _executor(values), values["store"]
    with nullcontext() if path is None else alone(path), output.progress("measuring", unit="cells") as update:
        outcomes = run(tasks, executor, None if path is None else Store(path), update)
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

    found = values["calibration"] if takes_factors(kv, layers) else None
    return {
        "codebooks": [str(Path(b).absolute()) for b in values["codebooks"]] if takes_codebooks(kv, layers) else [],
        "calibration": None if found is None else str(Path(found).absolute()),
    }


def _executor(values: dict[str, Any]) -> Executor:
    if values["cluster"]:
        if values["workers"] > 1:
            raise ConfigError("--workers is for this machine; a --cluster runs a cell on each of its machines")
        from polykv.evals.executor_ray import RayCluster

        return RayCluster(values["cluster"])
    from polykv.evals.executor import LocalProcesses

    return LocalProcesses(values["workers"])
