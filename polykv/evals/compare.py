"""Two results of one kind side by side: what changed, and whether the same thing was measured at all."""

from __future__ import annotations

from typing import Any

from polykv.counted import counted
from polykv.errors import ConfigError
from polykv.evals.result import Cell, Result, Verdict
from polykv.evals.table import Table

# What tells the cells of a result apart, as far as they have it.
KEYS = ("kv", "role", "ctx", "task", "length", "depth", "self_test")
# Parts of a stamp that always differ.
FREE = ("date",)
Cells = dict[tuple[tuple[str, str], ...], Cell]


def compare(a: Result, b: Result) -> tuple[Table, list[str]]:
    """A row for every figure that differs, and what else differs between the two: settings, machine, model.

    Raises ConfigError for results of different kinds.
    """
    if a.kind != b.kind:
        raise ConfigError(f"one result is of kind {a.kind}, the other of kind {b.kind}: they have no figures in common")
    mine, theirs = ({_key(c): c for c in r.cells} for r in (a, b))
    rows = []
    for key, cell in mine.items():
        if key in theirs:
            rows += [[_name(key), *row] for row in _changes(cell, theirs[key])]
    same = sum(key in theirs for key in mine)
    changed = f"{counted(len(rows), 'figure')} differ{'s' * (len(rows) == 1)}"
    title = f"{a.kind}: {counted(same, 'cell')} in common, {changed}"
    notes = [
        f"only in the {which}: {_name(k)}"
        for which, x, y in (("first", mine, theirs), ("second", theirs, mine))
        for k in x
        if k not in y
    ]
    notes += _lacking(mine, theirs)
    notes += _differences("settings", a.settings, b.settings)
    notes += _differences("stamp", _fixed(a.stamp), _fixed(b.stamp))
    if a.verdict is not b.verdict:
        notes.append(f"verdicts: {a.verdict.value}, {b.verdict.value}")
    for which, r in (("first", a), ("second", b)):
        if r.verdict is Verdict.INVALID:
            notes.append(f"the {which} is void, its figures mean nothing: {'; '.join(r.reasons)}")
    return Table(title, ["cell", "figure", "first", "second", "change"], rows, text=2), notes


def _key(cell: Cell) -> tuple[tuple[str, str], ...]:
    return tuple((k, str(cell[k])) for k in KEYS if k in cell)


def _name(key: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(v if k in ("kv", "role", "task") else f"{k} {v}" for k, v in key)


def _lacking(mine: Cells, theirs: Cells) -> list[str]:
    """Figures that one of two cells lacks, by the result that has them."""
    found = []
    for which, x, y in (("first", mine, theirs), ("second", theirs, mine)):
        names = [k for key in x if key in y for k in _flat(x[key]) if k not in _flat(y[key])]
        if names:
            found.append(f"figures only in the {which}: {', '.join(dict.fromkeys(names))}")
    return found


def _flat(cell: Cell) -> Cell:
    """Figures with those that are in objects of their own, such as quantiles."""
    inner = {f"{k} {i}": v for k, o in cell.items() if isinstance(o, dict) for i, v in o.items()}
    return {k: v for k, v in cell.items() if not isinstance(v, dict)} | inner


def _changes(a: Cell, b: Cell) -> list[list[str]]:
    """Numbers and texts that differ, as (figure, first, second, change)."""
    a, b, found = _flat(a), _flat(b), []
    for key in [k for k in a if k in b and a[k] != b[k] and k not in KEYS]:
        x, y = a[key], b[key]
        if isinstance(x, bool) or isinstance(y, bool) or not all(isinstance(v, int | float) for v in (x, y)):
            if isinstance(x, str | bool | int | float | None) and isinstance(y, str | bool | int | float | None):
                found.append([key, str(x)[:40], str(y)[:40], ""])
            continue
        found.append([key, f"{x:.6g}", f"{y:.6g}", f"{(y - x) / abs(x):+.2%}" if x else "-"])
    return found


def _fixed(stamp: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in stamp.items() if k not in FREE}


def _differences(what: str, a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [f"{what} {k}: {a.get(k)!r:.60}, {b.get(k)!r:.60}" for k in {**a, **b} if a.get(k) != b.get(k)]
