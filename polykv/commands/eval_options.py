"""Options that the kinds of `polykv eval` share, and what happens to a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.options import (
    Decorator,
    backend_option,
    calibration_option,
    calibration_v_option,
    chain,
    codebook_option,
    json_option,
    model_option,
)
from polykv.commands.output import Output
from polykv.errors import ConfigError, PolyKVError
from polykv.whole_file import check_writable

if TYPE_CHECKING:
    from polykv.evals.arms import Arm, Setting
    from polykv.evals.result import Cell, Result

DEFAULT_ARMS = ("f16", "q8_0", "q8_0/turbo3")
# Options that name a file to read -> what click calls their value.
_SOURCES = {
    "model": "model",
    "corpus": "corpus",
    "haystack-file": "haystack_file",
    "prompts": "file",
    "calibration": "calibration",
    "calibration-v": "calibration_v",
}


def arms_option(default: tuple[str, ...]) -> Decorator:
    """--kv, which may be repeated. default: what is compared without it, for the help text."""
    text = f"Types to compare; repeat it. Default: {'  '.join(default)}"
    return click.option("--kv", "kvs", multiple=True, metavar="K/V", help=text)


base_option = click.option("--base", default="f16", show_default=True, metavar="K/V", help="What counts as exact.")
activations_option = click.option(
    "--activations",
    type=click.Choice(["f32", "q8"]),
    default="f32",
    show_default=True,
    help="f32: nothing but the cache differs; q8: as cpu runs by default.",
)
threads_option = click.option("--threads", type=click.IntRange(min=1), default=None, help="Worker threads.")
out_option = click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Keep the result as JSON here."
)


def model_options_for(default: tuple[str, ...]) -> Decorator:
    """What is measured on which model. default: as for `arms_option`."""
    return chain(
        model_option, arms_option(default), codebook_option, calibration_option, calibration_v_option, backend_option
    )


model_options = model_options_for(DEFAULT_ARMS)
run_options = chain(activations_option, threads_option, out_option, json_option)


# What floors may be, by figure: from, to.
SHARE, SIZE, ANY = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf)
Floors = dict[str, tuple[float, float]]


def floor_option(names: Iterable[str]) -> Decorator:
    """--floor NAME=VALUE, for figures of these names."""
    text = f"Exit with 1 if a type is worse: NAME=VALUE, names {', '.join(names)}; may be repeated."
    return click.option("--floor", "floors", multiple=True, metavar="NAME=VALUE", help=text)


def read_floors(texts: tuple[str, ...], names: Floors) -> dict[str, float]:
    """Limits by name.

    >>> read_floors(("kld=0.05",), {"kld": SIZE, "same_top": SHARE})
    {'kld': 0.05}

    Raises ConfigError for an unknown name, what is no finite number, or one that the figure cannot have.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            limit = float(value)
        except ValueError:
            limit = float("nan")
        if name not in names or not math.isfinite(limit):
            raise ConfigError(f"--floor {text}: it takes NAME=VALUE with one of the names {', '.join(names)}")
        low, high = names[name]
        if not low <= limit <= high:
            to = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
            raise ConfigError(f"--floor {text}: {name} is {to}")
        found[name] = limit
    return found


def below(cells: list[Cell], floors: dict[str, float], higher: frozenset[str]) -> list[str]:
    """What is worse than a floor, in words. higher: names of figures that are better when they are higher."""
    reasons = []
    for cell in cells:
        for name, limit in floors.items():
            value = cell.get(name)
            # What is no number is not good enough.
            if value is None or not (value >= limit if name in higher else value <= limit):
                reasons.append(f"{cell['kv']}: {name} is {_number(value)}, the floor is {limit:g}")
    return reasons


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def counting(update: Callable[[int, int, str], None], text: str) -> Callable[[int, int], None]:
    """The update of a progress bar that always says `text`."""
    return lambda done, total: update(done, total, text)


def check_out(path: Path | None) -> None:
    """Raise FormatError when a result could not be written, before it is worked for."""
    if path is not None:
        check_writable(path)


def check_files(values: dict[str, Any], **targets: Path | None) -> None:
    """Raise a PolyKVError when a file could not be written, or would be written over another that is named.

    targets: files to write, by the names of their options.
    """
    from polykv.evals.corpora import CORPORA
    from polykv.evals.files import check_apart

    for path in targets.values():
        check_out(path)
    sources = {f"--{name}": values.get(key) for name, key in _SOURCES.items()}
    sources |= {f"--codebook {b}": b for b in values.get("codebooks", ())}
    named = {option: str(path) for option, path in sources.items() if path not in (None, "-", *CORPORA)}
    check_apart({f"--{name}": path for name, path in targets.items()}, named)


def start_threads(backend: str, threads: int | None) -> None:
    """Set the number of worker threads. Raises ConfigError for a backend that has none."""
    from polykv.llm import set_threads

    set_threads(backend, threads)


def check_codebooks(kvs: tuple[str, ...], layers: int) -> None:
    """Raise ConfigError when --codebook is given for types none of which has a codebook."""
    from polykv.evals.arms import takes_codebooks

    if not any(takes_codebooks(kv, layers) for kv in kvs):
        raise ConfigError("--codebook: none of the types that are compared has a codebook")


def open_arms(setting: Setting, kvs: tuple[str, ...], values: dict[str, Any]) -> list[Arm]:
    """The arms that --kv names, once each. A codebook goes to those with a trellis type, a calibration to those with
    a compressed one."""
    from polykv.cache.calibration_file import read_calibration
    from polykv.evals.arms import make_arm, takes_codebooks, takes_factors

    factors = read_calibration(values["calibration"], values["calibration_v"])
    wanted, n = tuple(dict.fromkeys(kvs or DEFAULT_ARMS)), len(setting.model.config.layers)
    if values["codebooks"]:
        check_codebooks(wanted, n)
    return [
        make_arm(
            setting,
            kv,
            codebooks=values["codebooks"] if takes_codebooks(kv, n) else (),
            calibration=factors if takes_factors(kv, n) else None,
        )
        for kv in wanted
    ]


# Settings that `describe_files` gives.
FILES = ("calibration", "calibration_v", "codebooks")


def describe_files(values: dict[str, Any]) -> dict[str, Any]:
    """For the settings of a result: calibration and codebooks as names without folders, and what tells them from others
    of that name. Raises ConfigError when one cannot be read."""
    from polykv.evals.corpora import text_digest

    def named(path: str) -> str:
        try:
            return f"{Path(path).name} ({text_digest(Path(path).read_bytes())})"
        except OSError as e:
            raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from None

    factors = {name: values[name] for name in ("calibration", "calibration_v")}
    return {
        **{name: None if path is None else named(path) for name, path in factors.items()},
        "codebooks": [named(book) for book in values["codebooks"]],
    }


def show(out: Output, result: Result) -> None:
    """The tables of a result."""
    from polykv.evals.tables import tables

    for t in tables(result):
        out.table(t.title, t.columns, t.rows, t.caption, text_columns=t.text)


def conclude(out: Output, result: Result, path: Path | None, also: Callable[[], None] | None = None) -> None:
    """Keep the result, say the verdict, print the JSON line, and exit with the verdict's code. A result that cannot be
    kept is printed all the same. also: writes what else is made of it."""
    lost: PolyKVError | None = None
    for write in (None if path is None else partial(result.save, path), also):
        try:
            if write is not None:
                write()
        except PolyKVError as e:
            lost = lost or e
    for note in result.notes:
        out.note(note)
    if result.reasons:
        out.text(f"{result.verdict.value.upper()}: {'; '.join(result.reasons)}")
    out.json(result.to_json())
    if lost is not None:
        raise lost
    if result.verdict.exit_code:
        raise click.exceptions.Exit(result.verdict.exit_code)
