"""Tables of scores, and heat maps of scores by depth and length, for `polykv.commands.eval_tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polykv.commands.output import Output

if TYPE_CHECKING:
    from polykv.evals.result import Cell

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
NONE = "-"


def show(out: Output, title: str, cells: list[Cell]) -> None:
    """The table of one arm, and its heat maps."""
    figures = [name for name in FIGURES if any(name in c["figures"] for c in cells)]
    precise = any(c["precision"] is not None for c in cells)
    against = next((c["against"]["kv"] for c in cells if "against" in c), None)
    columns = ["task", "length", "score", "95 %"]
    columns += ["precision"] * precise + [FIGURES[name][0] for name in figures] + ["n", "no data", "capped"]
    columns += [] if against is None else [f"less {against}", "worse", "better", "p"]
    rows = []
    for c in cells:
        low, high = c["interval"]
        row = [c["task"], f"{c['length']:,}", _number(c["score"]), f"{low:.0f} - {high:.0f}"]
        row += [_number(c["precision"])] * precise
        row += [FIGURES[f][1].format(c["figures"][f]) if f in c["figures"] else NONE for f in figures]
        row += [str(c["n"]), str(c["no_data"]), str(c["capped"])]
        rows.append(row + ([] if against is None else _difference(c["against"])))
    out.table(f"{title} ({cells[0]['metric']}, {_modes(cells)})", columns, rows)
    heat_map(out, cells)


def heat_map(out: Output, cells: list[Cell]) -> None:
    """Scores by task and depth (rows) and length (columns), each with the number of things looked for there."""
    lengths = list(dict.fromkeys(c["length"] for c in cells))
    rows = []
    for task in dict.fromkeys(c["task"] for c in cells):
        bins = [c["by_depth"] for c in cells if c["task"] == task]
        if not bins[0]:
            continue
        for i, b in enumerate(bins[0]):
            found = [f"{_number(by[i]['score'])} ({by[i]['n']})" if by[i]["n"] else NONE for by in bins]
            rows.append([task, f"{b['from']:.0%} - {b['to']:.0%}", *found])
    if rows:
        out.table(
            "score by depth and length, in brackets how many", ["task", "depth", *(f"{n:,}" for n in lengths)], rows
        )


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _difference(d: Cell) -> list[str]:
    difference = NONE if d["difference"] is None else f"{d['difference']:+.1f}"
    return [difference, str(d["worse"]), str(d["better"]), f"{d['p']:.2g}"]


def _modes(cells: list[Cell]) -> str:
    ways = {"template": "chat template", "raw": "plain text"}
    return ", ".join(ways[mode] for mode in dict.fromkeys(c["mode"] for c in cells))
