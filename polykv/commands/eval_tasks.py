"""`polykv eval niah`, `vt`, `mrcr`, `countup`, `copy`: answers that can be checked, by types of K/V."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from polykv.commands.ask import read_document
from polykv.commands.compiling import Compiling
from polykv.commands.eval_options import (
    check_files,
    conclude,
    counting,
    describe_files,
    floor_option,
    model_options,
    open_arms,
    read_floors,
    run_options,
    show,
    start_threads,
)
from polykv.commands.eval_store import open_store, store_option
from polykv.commands.eval_text import corpus_option, describe_corpus, read_corpus
from polykv.commands.numbers import Number
from polykv.commands.options import Decorator
from polykv.commands.output import Output
from polykv.errors import ConfigError

if TYPE_CHECKING:
    from polykv.evals.haystack import Essay
    from polykv.evals.sample import Task

FLOORS = {"score": (0.0, 100.0)}
# Tokens that the numbers which are given may take.
COUNT_ROOM = 64

_samples = click.option("--samples", type=click.IntRange(min=1), default=10, show_default=True, help="Of each task.")
_seed = click.option("--seed", type=click.IntRange(min=0), default=42, show_default=True)
_time_limit = click.option(
    "--time-limit", type=Number(min=0, min_open=True), default=None, help="Seconds for one answer."
)
_depths = click.option(
    "--depths", default=None, metavar="N,N,...", help="Where the needle stands, in percent of the text."
)
_haystack = click.option(
    "--haystack-file",
    type=click.Path(dir_okay=False),
    default=None,
    metavar="FILE",
    help="A text of yours to hide things in; the same as --corpus FILE. (niah_single_1 takes filling.)",
)


def _lengths(default: str) -> Decorator:
    return click.option(
        "--lengths", default=default, show_default=True, metavar="N,N,...", help="Tokens of prompt and answer together."
    )


def _tasks(names: str, default: str) -> Decorator:
    help_text = f"Which; known: {names}."
    return click.option("--tasks", default=default, show_default=True, metavar="NAME,...", help=help_text)


def _common(f: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed((_samples, _seed, _time_limit, floor_option(FLOORS), store_option, run_options)):
        f = option(f)
    return model_options(f)


@click.command()
@_common
@_tasks("niah_single_1..3, niah_multikey_1..3, niah_multivalue, niah_multiquery, all", "niah_single_1")
@_lengths("1024,2048")
@_depths
@corpus_option
@_haystack
def niah(tasks: str, lengths: str, depths: str | None, **values: Any) -> None:
    """Needles in a haystack: are the magic numbers found that a long text hides? The eight tasks of RULER."""
    from polykv.evals.needles import TASKS
    from polykv.evals.needles import niah as make

    made = make(_names(tasks, TASKS), _essay(values), _percents(depths))
    named = values["haystack_file"] is not None or _corpus_is_named()
    if named and not any(task.haystack == "essay" for task in made):
        wanted = ", ".join(task.name for task in made)
        raise ConfigError(f"no text is read for {wanted}: take other --tasks, for example niah_single_2")
    _evaluate("niah", _grid(made, lengths), values, depths=depths)


@click.command()
@_common
@click.option("--hops", type=click.IntRange(1, 20), default=4, show_default=True, help="Assignments after the first.")
@click.option("--no-example", is_flag=True, help="Leave out the worked example.")
@_lengths("1024,2048")
def vt(hops: int, no_example: bool, lengths: str, **values: Any) -> None:
    """Variable tracking: which variables got a number that was handed on from one to the next? RULER's task."""
    from polykv.evals.tracking import Tracking

    made = [Tracking(hops, not no_example)]
    _evaluate("vt", _grid(made, lengths), values, hops=hops, example=not no_example)


@click.command()
@_common
@click.option("--needles", default="2", show_default=True, metavar="N,N,...", help="Equal requests: 2, 4, 8.")
@_lengths("2048")
def mrcr(needles: str, lengths: str, **values: Any) -> None:
    """Which of several equal requests: repeat what was written at the i-th of them. The structure of OpenAI's MRCR."""
    from polykv.evals.rewrites import Rewrites

    made = [Rewrites(n) for n in _numbers("--needles", needles)]
    _evaluate("mrcr", _grid(made, lengths), values)


@click.command()
@_common
@click.option("--tokens", default="1600", show_default=True, metavar="N,N,...", help="To count on for.")
def countup(tokens: str, **values: Any) -> None:
    """Counting: how far does it go before a number is wrong? The first --kv is the control of the others."""
    from polykv.evals.counting import Counting

    made = [(Counting(n), n + COUNT_ROOM) for n in _numbers("--tokens", tokens)]
    _evaluate("countup", made, values)


@click.command()
@_common
@_tasks("copy_id, copy_hex, copy_json, copy_tool, all", "all")
@_lengths("1024,2048")
@_depths
@corpus_option
@_haystack
def copy(tasks: str, lengths: str, depths: str | None, **values: Any) -> None:
    """Copies without one wrong character: ids, hexadecimal strings, JSON by a schema, arguments of a tool call.

    Records stand at 0, 25, 50, 75 and 100 percent of a text by turns (--depths).
    """
    from polykv.evals.copying import TASKS, copying

    made = copying(_names(tasks, TASKS), _essay(values), _percents(depths))
    _evaluate("copy", _grid(made, lengths), values, depths=depths)


def _evaluate(kind: str, grid: Sequence[tuple[Task, int]], values: dict[str, Any], **more: Any) -> None:
    """Run the tasks of a grid on all arms, show what came out, and end with the verdict's exit code."""
    from polykv.evals.answers import BATCH
    from polykv.evals.arms import open_setting
    from polykv.evals.kept import Kept
    from polykv.evals.result import Result
    from polykv.evals.session import session
    from polykv.evals.stamp import stamp
    from polykv.evals.suite import Arms, Suite, blind, objections, settings, shortfalls
    from polykv.llm import choose_activations

    output = Output(values["as_json"])
    check_files(values, out=values["out"], store=values["store"])
    floor = read_floors(values["floors"], FLOORS).get("score")
    suite = Suite(tuple(grid), values["samples"], values["seed"])
    chosen = values.get("read", {}) | describe_files(values) | {"time_limit": values["time_limit"]}
    start_threads(values["backend"], values["threads"])
    activations = choose_activations(values["backend"], values["activations"])
    setting = open_setting(values["model"], backend=values["backend"], activations=activations, ctx=suite.longest)
    found, arms = Arms(suite), open_arms(setting, values["kvs"], values)
    with open_store(values["store"], output) as store:
        kept = Kept.of(kind, setting, store)
        for arm in arms:
            llm = session(setting, arm, context=suite.longest, sequences=BATCH)
            found.prepare(llm)
            with Compiling(setting.ops.name), output.progress(arm.name, unit="sample") as update:
                tell = counting(update, f"answers of {arm.name}")
                cells = found.add(arm.name, llm, time_limit=values["time_limit"], on_progress=tell, kept=kept)
            show(output, Result(kind, {}, {}, cells))
    remarks = [*suite.remarks(), *blind(found.cells)]
    for remark in remarks:
        output.text(remark)
    made = stamp(setting.model, backend=setting.ops.name, activations=activations, threads=values["threads"])
    result = Result(kind, made, settings(suite, remarks, **chosen, **more), found.cells)
    conclude(output, result.judge(objections(found.cells), shortfalls(found.cells, floor)), values["out"])


def _grid(tasks: Sequence[Task], lengths: str) -> list[tuple[Task, int]]:
    """Every task at every length."""
    return [(task, n) for task in tasks for n in _numbers("--lengths", lengths)]


def _essay(values: dict[str, Any]) -> Essay:
    """The text that --haystack-file or --corpus names; values["read"] then says which, for the settings of a result.
    Raises ConfigError when both are given."""
    from polykv.evals.haystack import Essay

    file, name = values["haystack_file"], values["corpus"]
    if file is not None and _corpus_is_named():
        raise ConfigError("--corpus and --haystack-file both name a text; give one of them")
    text = read_corpus(name) if file is None else read_document(file)
    values["read"] = describe_corpus(name if file is None else file, text)
    return Essay.of(text, name if file is None else file)


def _corpus_is_named() -> bool:
    """Whether --corpus is on the command line."""
    return click.get_current_context().get_parameter_source("corpus") is ParameterSource.COMMANDLINE


def _names(text: str, known: Iterable[str]) -> list[str]:
    """Names of tasks, each once; `all` stands for all of them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--tasks names none; known: {', '.join(known)}")
    return list(dict.fromkeys(known if names == ["all"] else names))


def _numbers(option: str, text: str) -> list[int]:
    """Whole numbers of at least 1, each once, in the order given."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) <= 9 and int(part) for part in parts):
        raise ConfigError(f"{option} {text!r:.60}: whole numbers of 1 or more are needed, with commas between them")
    return list(dict.fromkeys(map(int, parts)))


def _percents(text: str | None) -> tuple[float, ...]:
    """Depths as shares of 0 to 1; none when the option was not given."""
    if text is None:
        return ()
    try:
        depths = [float(part) for part in text.split(",")]
    except ValueError:
        depths = [-1.0]
    if not all(0 <= d <= 100 for d in depths):
        raise ConfigError(f"--depths {text!r:.60}: percentages of 0 to 100 are needed, with commas between them")
    return tuple(d / 100 for d in depths)
