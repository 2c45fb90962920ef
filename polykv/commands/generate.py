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
    show_report,
)
from polykv.commands.output import Output
from polykv.errors import PromptError


@click.command()
@click.argument("prompt")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@sampling_options
@run_options
def command(prompt: str, raw: bool, **values: Any) -> None:
    """Answer PROMPT (- reads it from standard input)."""
    out = Output(values["as_json"])
    if prompt == "-":
        prompt = read_stdin()
    if not prompt.strip() and not raw:
        raise PromptError("the prompt is empty (--raw continues any text, also blanks)")
    compiling = Compiling(values["backend"])
    llm = open_model(values, out, compiling)
    with compiling, llm.stream(prompt, raw=raw, **sampling(values, DEFAULT_ANSWER)) as stream:
        for piece in stream:
            out.text(piece, end=False)
        generation = stream.generation
        out.text()
    say_if_cut(generation)
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
