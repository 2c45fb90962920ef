"""`polykv eval ppl` and `polykv eval kld`: predictions on windows of a text, with exact and with compressed K/V."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.compiling import Compiling
from polykv.commands.eval_options import (
    ANY,
    DEFAULT_ARMS,
    FILES,
    SHARE,
    SIZE,
    base_option,
    below,
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
from polykv.commands.output import Output
from polykv.evals.overview_judge import CONTROL, control_reason, not_finite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from polykv.evals.arms import Arm, Setting
    from polykv.evals.result import Cell, Result
    from polykv.evals.windows import Window

FLOORS = {"kld": SIZE, "kld_p99": SIZE, "same_top": SHARE, "ln_ppl_ratio": ANY}
HIGHER = frozenset({"same_top"})
_WINDOWS = (
    corpus_option,
    store_option,
    click.option("--ctx", type=click.IntRange(min=2), default=512, show_default=True, help="Tokens of a window."),
    click.option("--windows", type=click.IntRange(min=1), default=8, show_default=True, help="The most that are read."),
    click.option("--decode", is_flag=True, help="Read the scored half token by token, as decoding does. Slower."),
    click.option(
        "--max-ppl",
        type=Number(min=1),
        default=100.0,
        show_default=True,
        help="A model with a higher perplexity does not know the text: the result is void.",
    ),
)


def _window_options(f: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_WINDOWS):
        f = option(f)
    return f


@click.command()
@model_options
@_window_options
@run_options
def ppl(as_json: bool, out: Path | None, kvs: tuple[str, ...], **values: Any) -> None:
    """Perplexity of a text: exp of the mean -log p of its tokens, in the second half of windows of --ctx tokens.

    Windows are cut and scored as llama.cpp's perplexity tool does, so the figures can be laid side by side.
    """
    from polykv.evals.divergence import perplexity
    from polykv.evals.kept import Kept
    from polykv.evals.perplexity import score

    output = Output(as_json)
    check_files(values, out=out, store=values["store"])
    setting, windows, text = _open(values)
    arms = open_arms(setting, kvs, values)
    cells: list[Cell] = []
    with open_store(values["store"], output) as store:
        kept = Kept.of("ppl", setting, store)
        for arm in arms:
            with Compiling(setting.ops.name), output.progress(arm.name) as update:
                nll = score(windows, arm, setting, counting(update, arm.name), kept)
            value, error = perplexity(nll)
            cells.append({"kv": arm.name, "positions": nll.size, "ppl": value, "ppl_error": error})
    # A pair that ruins the model says nothing about the text.
    best = min(cells, key=lambda c: c["ppl"] if math.isfinite(c["ppl"]) else math.inf)
    invalid = _strange(best["kv"], best["ppl"], values["max_ppl"]) + _void(setting, arms, cells, values["ctx"])
    result = _result("ppl", setting, values | text, windows, cells).judge(invalid, [])
    show(output, result)
    conclude(output, result, out)


@click.command()
@model_options
@base_option
@_window_options
@floor_option(FLOORS)
@click.option("--no-control", is_flag=True, help=f"Leave out the control, which is {CONTROL}.")
@run_options
def kld(
    as_json: bool,
    out: Path | None,
    kvs: tuple[str, ...],
    base: str,
    floors: tuple[str, ...],
    no_control: bool,
    **values: Any,
) -> None:
    """How far predictions move: KL divergence from a run with exact K/V, over the whole vocabulary, at every position
    of the second half of windows of --ctx tokens.

    The control q8_0 runs along: if it moves predictions, something other than the types is wrong, and the result is
    void (exit code 3).
    """
    from polykv.evals.arms import make_arm
    from polykv.evals.divergence import by_depth, figures, perplexity
    from polykv.evals.kept import Kept
    from polykv.evals.perplexity import compare

    output = Output(as_json)
    check_files(values, out=out, store=values["store"])
    limits = read_floors(floors, FLOORS)
    setting, windows, text = _open(values)
    asked = kvs or DEFAULT_ARMS
    arms = open_arms(setting, asked if no_control or CONTROL in asked else (CONTROL, *asked), values)
    with (
        open_store(values["store"], output) as store,
        Compiling(setting.ops.name),
        output.progress("reading") as update,
    ):
        kept = Kept.of("kld", setting, store)
        found = compare(windows, make_arm(setting, base), arms, setting, counting(update, "reading"), kept)
    cells = [
        {
            "kv": kv,
            **figures(m.positions),
            "bytes_per_token": m.bytes_per_token,
            "bits": m.bits,
            "bits_held": m.bits_held,
        }
        for kv, m in found.items()
    ]
    for cell in cells:
        cell["kld_p99"] = cell["kld_quantiles"]["p99"]
        cell["by_depth"] = by_depth(found[cell["kv"]].positions, windows)
    base_ppl, _ = perplexity(next(iter(found.values())).positions.base_nll)
    invalid = _strange(base, base_ppl, values["max_ppl"]) + _void(setting, arms, cells, values["ctx"])
    if not no_control:
        control = next(c for c in cells if c["kv"] == CONTROL)
        invalid += control_reason(control, control["positions"], rounded=values["activations"] == "q8")
    used = values | text | {"base": base, "base_ppl": base_ppl, "no_control": no_control}
    result = _result("kld", setting, used, windows, cells)
    if base == CONTROL and not no_control:
        result.notes.append(f"{CONTROL} is the base and the control: nothing is controlled")
    show(output, result)
    conclude(output, result.judge(invalid, below([c for c in cells if c["kv"] in asked], limits, HIGHER)), out)


def _open(values: dict[str, Any]) -> tuple[Setting, list[Window], dict[str, Any]]:
    """The model, its windows, and what was read, for the settings of the result."""
    from polykv.evals.arms import open_setting
    from polykv.evals.windows import text_windows
    from polykv.llm import choose_activations
    from polykv.text.tokenizer import Tokenizer

    start_threads(values["backend"], values["threads"])
    activations = choose_activations(values["backend"], values["activations"])
    setting = open_setting(
        values["model"], backend=values["backend"], activations=activations, ctx=values["ctx"], decode=values["decode"]
    )
    tokenizer = Tokenizer.from_gguf(setting.model.gguf.metadata)
    text = read_corpus(values["corpus"])
    windows = text_windows(tokenizer, text, values["ctx"], values["windows"])
    return setting, windows, describe_corpus(values["corpus"], text) | describe_files(values)


def _strange(kv: str, ppl: float, limit: float) -> list[str]:
    if ppl <= limit:
        return []
    return [f"perplexity {ppl:.4g} with {kv} is above {limit:g}: the model does not know such texts (--max-ppl)"]


def _void(setting: Setting, arms: list[Arm], cells: list[Cell], ctx: int) -> list[str]:
    """Reasons against figures that say nothing about their types."""
    from polykv.evals.arms import never_coded

    # The last token of a window is predicted, not read.
    return not_finite(cells, ("ppl", "kld")) + never_coded(setting.model.config, arms, ctx - 1)


def _result(kind: str, setting: Setting, values: dict[str, Any], windows: list[Window], cells: list[Cell]) -> Result:
    from polykv.evals.result import Result
    from polykv.evals.stamp import stamp

    names = ("corpus", "text", "ctx", "decode", "max_ppl", "base", "base_ppl", "no_control", *FILES)
    settings = {name: values[name] for name in names if name in values}
    settings |= {"windows": len(windows), "positions": sum(w.scored for w in windows)}
    made = stamp(setting.model, backend=setting.ops.name, activations=setting.activations, threads=values["threads"])
    return Result(kind, made, settings, cells)
