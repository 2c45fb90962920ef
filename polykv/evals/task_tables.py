"""Scores of tasks as tables: of every arm, against the first arm, and by depth and length (a heat map)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from polykv.evals.result import Cell
from polykv.evals.table import Table

# Figures of the rules -> (name of the column, how a number is written).
FIGURES: dict[str, tuple[str, str]] = {
    "run": ("run", "{:.1f}"),
    "marked": ("mark in front", "{:.0%}"),
    "reasoned": ("reasoned first", "{:.0%}"),
    "anywhere": ("anywhere", "{:.0%}"),
    "parsed": ("parses", "{:.0%}"),
    "valid": ("fits schema", "{:.0%}"),
    "fields": ("fields", "{:.0%}"),
}
MODES = {"template": "chat template", "raw": "plain text"}
COMPARED = ("task", "length", "difference", "worse", "better", "of", "p")
NONE = "-"


def task_tables(kind: str, cells: Seq[Cell]) -> list[Table]:
    """Tables of every arm, in order."""
    found = []
    for kv in dict.fromkeys(c["kv"] for c in cells):
        mine = [c for c in cells if c["kv"] == kv]
        heat = f"{kind} by depth and length: {kv}; in brackets how many stand there"
        found += [_scores(f"{kind}: {kv}", mine), *_against(f"{kind}: {kv}", mine), *_heat_map(heat, mine)]
    return found


def _scores(title: str, cells: Seq[Cell]) -> Table:
    figures = [name for name in FIGURES if any(name in c["figures"] for c in cells)]
    precise = any(c["precision"] is not None for c in cells)
    columns = ["task", "length", "score", "95 %", *["precision"] * precise]
    columns += [*(FIGURES[name][0] for name in figures), "n", "no data", "capped"]
    rows = []
    for c in cells:
        low, high = c["interval"]
        row = [c["task"], f"{c['length']:,}", _number(c["score"]), f"{low:.0f} - {high:.0f}"]
        row += [_number(c["precision"])] * precise
        row += [FIGURES[f][1].format(c["figures"][f]) if f in c["figures"] else NONE for f in figures]
        rows.append([*row, str(c["n"]), str(c["no_data"]), str(c["capped"])])
    ways = [", ".join(dict.fromkeys(c["metric"] for c in cells)), *dict.fromkeys(MODES[c["mode"]] for c in cells)]
    return Table(f"{title} ({', '.join(ways)})", columns, rows)


def _against(title: str, cells: Seq[Cell]) -> list[Table]:
    """Differences from the first arm, of arms that have them."""
    rows = []
    for c in cells:
        if "against" in c:
            d = c["against"]
            difference = NONE if d["difference"] is None else f"{d['difference']:+.1f}"
            counts = [str(d[name]) for name in ("worse", "better", "n")]
            rows.append([c["task"], f"{c['length']:,}", difference, *counts, f"{d['p']:.2g}"])
    if not rows:
        return []
    first = next(c["against"]["kv"] for c in cells if "against" in c)
    return [Table(f"{title} less {first}, on the same samples", [*COMPARED], rows)]


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
    return [Table(title, ["task", "depth", *lengths], rows, text=2)]


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"
