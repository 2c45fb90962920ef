"""`polykv generate`: one prompt, one answer, as it appears."""

from __future__ import annotations

import sys
from typing import Any

import click

from polykv.commands.compiling import Compiling
from polykv.commands.options import (
    DEFAULT_ANSWER,
    check_notes,
    open_model,
    run_options,
    sampling,
    sampling_options,
    say_if_cut,
    say_if_shifted,
    show_report,
)
from polykv.commands.output import Output
from polykv.errors import PromptError


@click.command()
@click.argument("prompt")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@click.option(
    "--shift",
    type=click.IntRange(min=0),
    default=None,
    metavar="KEEP",
    help="When the context is full, keep its first KEEP tokens and the later half of the others, and go on; "
    "0 drops the beginning-of-text token too.",
)
@sampling_options
@run_options
def command(prompt: str, raw: bool, shift: int | None, **values: Any) -> None:
    """Answer PROMPT (- reads it from standard input)."""
    out = Output(values["as_json"])
    if prompt == "-":
        prompt = read_stdin()
    if not prompt.strip() and not raw:
        raise PromptError("the prompt is empty (--raw continues any text, also blanks)")
    if shift is not None and values["ctx"] is not None:
        # Known to be wrong before the model is opened.
        from polykv.engine_shift import check_shift

        check_shift(shift, values["ctx"])
    compiling = Compiling(values["backend"])
    llm = open_model(values, out, compiling)
    options = sampling(values, DEFAULT_ANSWER) | {"shift": shift}
    with compiling, llm.stream(prompt, raw=raw, **options) as stream:
        for piece in stream:
            out.text(piece, end=False)
        generation = stream.generation
        out.text()
    say_if_cut(generation)
    say_if_shifted(generation)
    check_notes(llm, values["strict"], out)
    report = show_report(llm, values, out)
    out.json(
        {
            "text": generation.text,
            "tokens": generation.tokens,
            "finish_reason": generation.finish_reason.value,
            "stats": generation.stats.as_dict(),
            "ops": dict(llm.ops.source),
            "notes": list(llm.notes),
            **report,
        }
    )


def read_stdin() -> str:
    """All of standard input as UTF-8 text."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise PromptError(f"standard input: not UTF-8 text (byte {e.start})") from None
