"""Scores of tasks as tables: one for every arm, and its heat map of scores by depth and length."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from polykv.evals.result import Cell
from polykv.evals.table import Table

# Figures of the rules -> (name of the column, how a number is written).
FIGURES: dict[str, tuple[str, str]] = {
    "run": ("numbers in a row", "{:.1f}"),
    "marked": ("mark in front", "{:.0%}"),
    "reasoned": ("reasoned first", "{:.0%}"),
    "anywhere": ("somewhere in it", "{:.0%}"),
    "parsed": ("parses", "{:.0%}"),
    "valid": ("fits schema", "{:.0%}"),
    "fields": ("fields right", "{:.0%}"),
}
MODES = {"template": "chat template", "raw": "plain text"}
NONE = "-"


def task_tables(kind: str, cells: Seq[Cell]) -> list[Table]:
    """Tables of every arm, in order."""
    found = []
    for kv in dict.fromkeys(c["kv"] for c in cells):
        mine = [c for c in cells if c["kv"] == kv]
        found += [_scores(f"{kind}: {kv}", mine), *_heat_map(f"{kind} by depth and length: {kv}", mine)]
    return found


def _scores(title: str, cells: Seq[Cell]) -> Table:
    figures = [name for name in FIGURES if any(name in c["figures"] for c in cells)]
    precise = any(c["precision"] is not None for c in cells)
    against = next((c["against"]["kv"] for c in cells if "against" in c), None)
    columns = ["task", "length", "score", "95 %", *["precision"] * precise]
    columns += [*(FIGURES[name][0] for name in figures), "n", "no data", "capped"]
    columns += [] if against is None else [f"less {against}", "worse", "better", "p"]
    rows = []
    for c in cells:
        low, high = c["interval"]
        row = [c["task"], f"{c['length']:,}", _number(c["score"]), f"{low:.0f} - {high:.0f}"]
        row += [_number(c["precision"])] * precise
        row += [FIGURES[f][1].format(c["figures"][f]) if f in c["figures"] else NONE for f in figures]
        row += [str(c["n"]), str(c["no_data"]), str(c["capped"])]
        rows.append(row + ([] if against is None else _difference(c["against"])))
    ways = [", ".join(dict.fromkeys(c["metric"] for c in cells)), *dict.fromkeys(MODES[c["mode"]] for c in cells)]
    return Table(f"{title} ({', '.join(ways)})", columns, rows)


def _heat_map(title: str, cells: Seq[Cell]) -> list[Table]:
    """Rows are tasks and depths, columns lengths. None for tasks that hide nothing."""
    rows = []
    for task in dict.fromkeys(c["task"] for c in cells):
        by_length = [c["by_depth"] for c in cells if c["task"] == task]
        for bins in zip(*by_length, strict=True):
            scores = [f"{_number(b['score'])} ({b['n']})" if b["n"] else NONE for b in bins]
            rows.append([task, f"{bins[0]['from']:.0%} - {bins[0]['to']:.0%}", *scores])
    if not rows:
        return []
    lengths = [f"{n:,}" for n in dict.fromkeys(c["length"] for c in cells)]
    return [Table(title, ["task", "depth", *lengths], rows, "in brackets: how many things stand there", 2)]


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _difference(d: Cell) -> list[str]:
    difference = NONE if d["difference"] is None else f"{d['difference']:+.1f}"
    return [difference, str(d["worse"]), str(d["better"]), f"{d['p']:.2g}"]
