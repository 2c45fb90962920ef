"""Where output goes: results to stdout, everything else to stderr; progress on a terminal only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from polykv.commands.streams import say
from polykv.counted import counted
from polykv.printable import printable

# Columns of a line that is not for a terminal: more than any table has.
WIDEST = 100_000


class Output:
    """One run's output. as_json: the last line of stdout is one JSON object."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self._seen: set[str] = set()

    # -- results -------------------------------------------------------------------------------------------------
    def text(self, text: str = "", *, end: bool = True) -> None:
        """Text of a model or a plain line. Control characters that could drive a terminal are shown, not sent."""
        click.echo(printable(text) if sys.stdout.isatty() else text, nl=end)
        sys.stdout.flush()

    def table(
        self, title: str, columns: list[str], rows: list[list[str]], caption: str = "", *, text_columns: int = 1
    ) -> None:
        """A table; the first `text_columns` columns are aligned left, the others (numbers) right."""
        if title:
            # As a line of its own: rich would fold a title, or a caption, to the width of the table.
            self.text(title)
        table = Table()
        for i, name in enumerate(columns):
            table.add_column(printable(name), justify="left" if i < text_columns else "right", overflow="fold")
        for row in rows:
            table.add_row(*[printable(cell) for cell in row])
        self.render(table)
        if caption:
            self.text(caption)

    def render(self, what: RenderableType) -> None:
        """Anything that rich can draw."""
        # Without a terminal rich assumes 80 columns and would fold wide tables, which other programs then cannot read.
        width = None if sys.stdout.isatty() else WIDEST
        _Console(file=sys.stdout, width=width, markup=False, highlight=False).print(what)

    def json(self, value: dict[str, Any]) -> None:
        """The last line, when --json asks for it."""
        if self.as_json:
            click.echo(json.dumps(value, ensure_ascii=False))

    # -- everything else -----------------------------------------------------------------------------------------
    def note(self, text: str) -> None:
        """A remark that a user should know, once."""
        if text not in self._seen:
            self._seen.add(text)
            say(f"polykv: note: {printable(text)}")

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """A spinner on a terminal, nothing in a pipe."""
        if not sys.stderr.isatty():
            yield
            return
        with Console(stderr=True).status(text):
            yield

    @contextmanager
    def progress(
        self, text: str, *, size: bool = False, unit: str = "token"
    ) -> Iterator[Callable[[int, int, str], None]]:
        """A bar on a terminal, nothing in a pipe; yields update(done, total, text). size: the numbers are bytes, else
        they count `unit`s."""
        if not sys.stderr.isatty():
            yield lambda done, total, text: None
            return
        numbers = DownloadColumn() if size else TextColumn("{task.fields[tokens]}")
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), numbers, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            # How many there are is known at the first update.
            task = bar.add_task(text, total=None, tokens="")
            yield lambda done, total, text: bar.update(
                task, completed=done, total=total, description=text, tokens=f"{done:,} of {counted(total, unit)}"
            )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would end the process with code 1; `polykv.cli` knows what to do.
        raise BrokenPipeError
