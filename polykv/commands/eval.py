"""`polykv eval KIND`: instruments that show what compressing K/V does to a model, see `polykv.evals`."""

from __future__ import annotations

import click

from polykv.commands.lazy import Entry, LazyGroup

# kind -> (module in polykv.commands, its command, one line for --help)
KINDS: dict[str, Entry] = {
    "overview": ("eval_overview", "command", "Quality, speed and memory of several types, in one table."),
    "ppl": ("eval_kld", "ppl", "Perplexity on a text."),
    "kld": ("eval_kld", "kld", "How far predictions move: divergence from exact K/V, position by position."),
    "logits": ("eval_logits", "command", "Does a run with compressed K/V choose the tokens of an exact one."),
    "niah": ("eval_tasks", "niah", "Needles in a haystack: the eight retrieval tasks of RULER."),
    "vt": ("eval_tasks", "vt", "Variable tracking, from RULER."),
    "mrcr": ("eval_tasks", "mrcr", "Repeating the i-th of several equal requests of a chat."),
    "countup": ("eval_tasks", "countup", "Counting until a number is wrong."),
    "copy": ("eval_tasks", "copy", "Copies without a wrong character: ids, JSON, tool calls."),
    "shift": ("eval_shift", "command", "Counting on when the context is full and half of it is dropped."),
    "report": ("eval_report", "report", "A result as HTML or Markdown."),
    "compare": ("eval_report", "compare", "Two results side by side."),
}


class Kinds(LazyGroup):
    """The kinds of the table above."""

    title, entries = "Kinds", KINDS


@click.command(cls=Kinds, subcommand_metavar="KIND [OPTIONS]")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Measure what K/V types do to the predictions and answers of a model.

    Every kind compares the types given with --kv (repeat it) on the same model and input, and prints a table; --out
    FILE keeps the result as JSON. Exit code 1: worse than a --floor; 3: a control failed, so the figures mean nothing.
    """
    # Defaults that come from the environment (see polykv.cli) are those of every kind.
    ctx.default_map = dict.fromkeys(KINDS, ctx.default_map or {})
