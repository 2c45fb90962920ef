"""A result as one file for people: Markdown, or HTML that needs nothing beside it.

Everything that is shown comes from the result and is escaped: names of models and texts are a stranger's.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from polykv.evals.pictures import pictures
from polykv.evals.result import Result
from polykv.evals.table import Table
from polykv.evals.tables import tables
from polykv.printable import printable

TITLES = {
    "ppl": "Perplexity",
    "kld": "Divergence from exact K/V",
    "logits": "Tokens against those of an exact run",
    "overview": "Overview of K/V types",
    "niah": "Needles in a haystack",
    "vt": "Variable tracking",
    "mrcr": "Which of several equal requests",
    "countup": "Counting",
    "copy": "Copies without a wrong character",
    "shift": "Counting across a context shift",
}


# Characters that begin markup anywhere in a line. Underscores do not inside words.
_MARKS = "\\`*[]|#!"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown(result: Result) -> str:
    """The result in Markdown: verdict, tables, settings, stamp."""
    lines = [f"# {_cell(title(result))}", "", f"Verdict: **{result.verdict.value}**"]
    lines += [f"* {_cell(reason)}" for reason in result.reasons]
    lines += [f"* Note: {_cell(note)}" for note in result.notes]
    for table in tables(result):
        lines += ["", *_markdown_table(table)]
    lines += ["", "## How it was made", ""]
    lines += [f"* {_cell(name)}: {_cell(value)}" for name, value in facts(result)]
    return "\n".join(lines) + "\n"


def html(result: Result, drawn: tuple[list[tuple[str, str]], str] | None = None) -> str:
    """The result as one HTML file, with pictures when matplotlib is installed. drawn: those of `pictures`, if known."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = (files("polykv.evals") / "templates" / "report.html").read_text(encoding="utf-8")
    found, missing = drawn or pictures(result)
    page = environment.from_string(source).render(
        title=title(result),
        verdict=result.verdict.value,
        reasons=result.reasons + [f"Note: {note}" for note in result.notes],
        tables=tables(result),
        pictures=found,
        missing=missing,
        facts=facts(result),
        raw=json.dumps(result.to_json(), ensure_ascii=False),
    )
    return printable(page)


def title(result: Result) -> str:
    """What was measured, on which model."""
    model = result.stamp.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    return TITLES.get(result.kind, result.kind) + (f": {name}" if name else "")


def facts(result: Result) -> list[tuple[str, str]]:
    """Stamp and settings as flat (name, value)."""
    return [*_flat("", result.stamp), *_flat("", result.settings)]


def _flat(prefix: str, value: dict[str, Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, v in value.items():
        name = f"{prefix}{key}"
        if isinstance(v, dict):
            found += _flat(f"{name} ", v)
        elif v is not None:
            found.append((name, ", ".join(map(str, v)) if isinstance(v, list) else str(v)))
    return found


def _markdown_table(table: Table) -> list[str]:
    marks = ["---" if i < table.text else "---:" for i in range(len(table.columns))]
    rows = [[_cell(c) for c in row] for row in table.rows]
    lines = [
        f"## {_cell(table.title)}",
        "",
        *(f"| {' | '.join(r)} |" for r in ([_cell(c) for c in table.columns], marks, *rows)),
    ]
    return [*lines, "", _cell(table.caption)] if table.caption else lines


def _cell(text: object) -> str:
    """Text that cannot break out of its line or cell, or become markup.

    >>> _cell("a|b <script>\\nq8_0")
    'a\\\\|b &lt;script&gt; q8_0'
    """
    flat = printable(" ".join(str(text).split()))
    return "".join(f"\\{c}" if c in _MARKS else _ENTITIES.get(c, c) for c in flat)
