"""Options that several subcommands share, and opening the model that they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.compiling import Compiling
from polykv.commands.numbers import Number
from polykv.commands.output import Output
from polykv.commands.streams import say
from polykv.errors import StrictError
from polykv.ops import BACKENDS

if TYPE_CHECKING:
    from polykv.engine_request import Generation
    from polykv.llm import LLM

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

model_option = click.option(
    "-m",
    "--model",
    default="smollm2",
    show_default=True,
    help="Path of a GGUF file, catalogue name, or hf:org/repo[:file].",
)
kv_option = click.option(
    "--kv",
    default="q8_0/turbo3",
    show_default=True,
    metavar="K/V",
    help="Cache types; per layer: q8_0/turbo3,0-1=f16; auto: more bits for K where its bias needs them.",
)
codebook_option = click.option(
    "--codebook",
    "codebooks",
    multiple=True,
    metavar="FILE",
    help="Codebook of a trellis type of --kv, raw float32 (polykv train-codebook); may be repeated.",
)
backend_option = click.option("--backend", type=click.Choice(BACKENDS), default="cpu", show_default=True)
calibration_option = click.option(
    "--calibration", type=click.Path(dir_okay=False), default=None, help="File of `polykv calibrate`: factors of K."
)
calibration_v_option = click.option(
    "--calibration-v", type=click.Path(dir_okay=False), default=None, help="The same for V."
)
json_option = click.option("--json", "as_json", is_flag=True, help="The last line of output is one JSON object.")
# Longest answer in tokens when -n is not given; the short one is for `ask`, whose answers are facts.
DEFAULT_ANSWER, SHORT_ANSWER = 256, 64
max_tokens_option = click.option(
    "-n",
    "--max-tokens",
    type=click.IntRange(min=1),
    default=None,
    help=f"Longest answer in tokens; default {SHORT_ANSWER} in ask, else {DEFAULT_ANSWER}.",
)


def chain(*options: Decorator) -> Decorator:
    """Several options as one decorator, in this order."""

    def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            f = option(f)
        return f

    return wrap


run_options = chain(
    model_option,
    kv_option,
    codebook_option,
    click.option("--ctx", type=click.IntRange(min=1), default=None, help="Longest sequence in tokens."),
    backend_option,
    click.option(
        "--activations",
        type=click.Choice(["f32", "q8"]),
        default=None,
        help="f32 is exact; q8 is faster, and the default of cpu.",
    ),
    click.option("--threads", type=click.IntRange(min=1), default=None, help="Worker threads; default all cores."),
    calibration_option,
    calibration_v_option,
    click.option(
        "--screen/--no-screen",
        default=True,
        help="Greedy tokens from half of the output matrix, where that pays; the same tokens.",
    ),
    json_option,
    click.option("--strict", is_flag=True, help="Anything that would be reported as a note is an error (exit 3)."),
    click.option("--report", is_flag=True, help="Print what ran: implementations, bytes, tokens/s."),
)

sampling_options = chain(
    max_tokens_option,
    click.option("--temperature", type=Number(min=0), default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-k", type=click.IntRange(min=0), default=0, help="0 is off."),
    click.option("--top-p", type=Number(0, 1, min_open=True), default=1.0, help="1 is off."),
    click.option("--min-p", type=Number(0, 1), default=0.0, help="0 is off."),
    click.option("--repetition-penalty", type=Number(min=0, min_open=True), default=1.0, help="1 is off."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
    click.option("--stop", multiple=True, help="A text that ends the answer; may be repeated."),
)

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def sampling(values: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """Keyword arguments of a generation from parsed options. max_tokens: what holds when -n was not given."""
    chosen = {name: values[name] for name in _SAMPLING}
    return {**chosen, "stop": tuple(values["stop"]), "max_tokens": values["max_tokens"] or max_tokens}


def open_model(values: dict[str, Any], out: Output, compiling: Compiling) -> LLM:
    """Load the model that the options name; with --strict, refuse when loading had to be noted."""
    from polykv.engine_options import make_request
    from polykv.llm import load

    # Options that no request takes are refused before anything is opened.
    make_request([0], **sampling(values, SHORT_ANSWER))
    with out.status("loading the model"), compiling:
        llm = load(
            values["model"],
            backend=values["backend"],
            kv=values["kv"],
            codebooks=values["codebooks"],
            activations=values["activations"],
            ctx=values["ctx"],
            threads=values["threads"],
            calibration=values["calibration"],
            calibration_v=values["calibration_v"],
            screen=values["screen"],
        )
    check_notes(llm, values["strict"], out)
    return llm


def check_notes(llm: LLM, strict: bool, out: Output) -> None:
    """Show what was noted about this run; raises StrictError when --strict forbids it."""
    notes = llm.notes
    if strict and notes:
        raise StrictError("; ".join(notes))
    for note in notes:
        out.note(note)


def say_if_cut(*answers: Generation) -> None:
    """Say which answers did not end by themselves."""
    from polykv.engine_request import Finish

    for reason, why in ((Finish.LENGTH, "-n sets the longest answer"), (Finish.CONTEXT, "the context is full")):
        cut = {i: a.stats.generated_n for i, a in enumerate(answers, 1) if a.finish_reason is reason}
        if cut:
            who = f" of agent{'s' * (len(cut) > 1)} {', '.join(map(str, cut))}" if len(answers) > 1 else ""
            say(f"polykv: answer{who} cut at {max(cut.values())} tokens: {why}")


def say_if_shifted(answer: Generation) -> None:
    """Say what a context shift made the answer forget."""
    s = answer.stats
    if s.shifts:
        times = f"{s.shifts:,} time{'s' * (s.shifts > 1)}"
        say(f"polykv: the context was full {times}: {s.shifted_cells:,} tokens were dropped from it (--shift)")


def show_report(llm: LLM, values: dict[str, Any], out: Output) -> dict[str, Any]:
    """With --report: print what ran, and return it as the field `report` of the JSON object; else nothing."""
    if not values["report"]:
        return {}
    from polykv.report import render

    report = llm.report()
    out.render(render(report))
    return {"report": report}
