"""`polykv eval report` and `polykv eval compare`: results on disk, for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.eval_options import check_files, show
from polykv.commands.options import Decorator, chain, json_option
from polykv.commands.output import Output
from polykv.errors import FormatError, PromptError
from polykv.printable import printable

if TYPE_CHECKING:
    from polykv.evals.result import Result

FILE = click.Path(dir_okay=False, path_type=Path)

report_options: Decorator = chain(
    click.option("--html", type=FILE, default=None, help="Also write one HTML file that needs nothing beside it."),
    click.option("--markdown", type=FILE, default=None, help="Also write Markdown."),
)


@click.command()
@click.argument("file", type=FILE)
@report_options
def report(file: Path, **values: Any) -> None:
    """Show the result in FILE, and write it as HTML or Markdown."""
    output = Output()
    check_files({}, file=file, html=values["html"], markdown=values["markdown"])
    result = _read(file)
    with _foreign(file, result.kind):
        show(output, result)
        output.text(f"verdict: {result.verdict.value}" + "".join(f"; {r}" for r in result.reasons))
        for note in result.notes:
            output.note(note)
        write_reports(result, values, output)


@click.command()
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@json_option
def compare(first: Path, second: Path, as_json: bool) -> None:
    """What differs between two results of one kind: figures, and how they were made."""
    from polykv.evals.compare import compare as side_by_side

    output = Output(as_json)
    a, b = _read(first), _read(second)
    with _foreign(f"{first} and {second}", a.kind):
        table, notes = side_by_side(a, b)
    output.table(table.title, table.columns, table.rows, text_columns=table.text)
    for note in notes:
        output.text(note)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    output.json({"differences": rows, "notes": notes})


def write_reports(result: Result, values: dict[str, Any], output: Output) -> None:
    """The files that --html and --markdown name."""
    from polykv.evals.files import write_text
    from polykv.evals.pictures import pictures
    from polykv.evals.report import html, markdown

    if values["html"] is not None:
        drawn = pictures(result)
        write_text(values["html"], html(result, drawn))
        if drawn[1]:
            output.note(drawn[1])
    if values["markdown"] is not None:
        write_text(values["markdown"], markdown(result))


@contextmanager
def _foreign(where: object, kind: str) -> Iterator[None]:
    """Results that were edited, or are of another version, have figures that are not where this version writes them:
    whatever fails on that account is the file's fault."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as e:
        reason = f"not those of kind {kind!r:.40} ({type(e).__name__}: {printable(str(e))[:100]})"
        raise FormatError(where, "cells", reason) from None


def _read(path: Path) -> Result:
    from polykv.evals.result import Result

    try:
        return Result.load(path)
    except OSError as e:
        raise PromptError(f"{path}: cannot be read: {e.strerror or e}") from None
