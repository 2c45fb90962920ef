"""A table of text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A title, columns, of which the first `text` hold text and the others numbers, rows, and a line below."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    caption: str = ""
    text: int = 1
