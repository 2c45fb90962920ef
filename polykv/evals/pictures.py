"""Pictures of a result as SVG text: loss against bits, loss by depth, heat maps of scores.

Needs matplotlib, which the extra `plot` brings; without it a report has tables only and says so.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from polykv.evals.overview_judge import Role
from polykv.evals.result import Cell, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NO_MATPLOTLIB = "pictures need matplotlib, which is not installed: pip install matplotlib"
# Divergences below that are rounding; a logarithmic axis has to begin somewhere.
LEAST = 1e-5


def pictures(result: Result) -> tuple[list[tuple[str, str]], str]:
    """(title, SVG) of every picture of a result, and why there is none, if that is for want of a library."""
    makers = [(name, make) for name, make in _PICTURES if _has(result, name)]
    if not makers:
        return [], ""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return [], NO_MATPLOTLIB
    found = []
    for name, make in makers:
        figure = Figure(figsize=(7.5, _height(result) if name == _HEAT else 4.2), layout="constrained")
        make(figure.add_subplot(), result)
        found.append((name, _svg(figure)))
    return found, ""


def _height(result: Result) -> float:
    """Of a heat map, in inches."""
    rows = {(c["task"], b["from"]) for c in result.cells for b in c.get("by_depth", [])}
    return 1.5 + 0.25 * len(rows)


def _svg(figure: Figure) -> str:
    """The drawing alone, without the declaration of a file of its own."""
    from matplotlib import rc_context

    out = io.StringIO()
    # Fixed names inside, and no date: the same result gives the same file.
    with rc_context({"svg.hashsalt": "polykv", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = out.getvalue()
    return text[text.index("<svg") :]


def _has(result: Result, name: str) -> bool:
    if name == _HEAT:
        return any(c.get("by_depth") and "score" in c for c in result.cells)
    cells = _measured(result)
    if name == _BY_DEPTH:
        return any(c.get("by_depth") for c in cells) or len({c.get("ctx") for c in cells}) > 1
    return bool(cells)


def _measured(result: Result) -> list[Cell]:
    """Cells with a divergence and a size, the last anchor and whatever failed left out."""
    cells = [c for c in result.cells if c.get("role") != Role.LAST]
    return [c for c in cells if _number(c.get("kld")) and _number(c.get("bits_held"))]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _label(name: object) -> str:
    """Text that is no formula: two dollar signs would begin one."""
    return str(name).replace("$", r"\$")


def _rate(axes: Axes, result: Result) -> None:
    depth = max((c.get("ctx", 0) for c in result.cells), default=0)
    for c in _measured(result):
        if c.get("ctx", 0) == depth:
            at = (c["bits_held"], max(c["kld"], LEAST))
            axes.plot(*at, "o")
            axes.annotate(_label(c["kv"]), at, xytext=(4, 4), textcoords="offset points")
    axes.set_yscale("log")
    axes.set_xlabel("bits per value, everything that is held")
    axes.set_ylabel("mean KLD in nats")
    axes.grid(alpha=0.3)


def _depth(axes: Axes, result: Result) -> None:
    cells = _measured(result)
    for kv in dict.fromkeys(c["kv"] for c in cells):
        mine = [c for c in cells if c["kv"] == kv]
        points = [(b["to"], b["kld"]) for c in mine for b in c.get("by_depth", []) if _number(b["kld"])] or [
            (c["ctx"], c["kld"]) for c in mine
        ]
        axes.plot([x for x, _ in points], [max(y, LEAST) for _, y in points], "o-", label=_label(kv))
    axes.set_yscale("log")
    axes.set_xlabel("tokens before the prediction")
    axes.set_ylabel("mean KLD in nats")
    axes.legend()
    axes.grid(alpha=0.3)


def _heat(axes: Axes, result: Result) -> None:
    """Rows are tasks and depths, columns types and lengths; blank where nothing stands."""
    cells = [c for c in result.cells if c.get("by_depth")]
    tasks, columns = (list(dict.fromkeys(key(c) for c in cells)) for key in (_task, _column))
    bins = [(b["from"], b["to"]) for b in cells[0]["by_depth"]]
    grid = np.full((len(tasks) * len(bins), len(columns)), np.nan)
    for c in cells:
        first = tasks.index(_task(c)) * len(bins)
        scores = [np.nan if b["score"] is None else b["score"] for b in c["by_depth"]]
        grid[first : first + len(bins), columns.index(_column(c))] = scores
    image = axes.imshow(grid, vmin=0, vmax=100, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(columns)), columns, fontsize="small")
    labels = [f"{task}, {low:.0%} - {high:.0%}" for task in tasks for low, high in bins]
    axes.set_yticks(range(len(labels)), labels, fontsize="small")
    axes.figure.colorbar(image, ax=axes, label="score")


def _task(cell: Cell) -> str:
    return _label(cell["task"])


def _column(cell: Cell) -> str:
    return f"{_label(cell['kv'])}\n{cell['length']:,}"


_BY_DEPTH = "Divergence by depth"
_HEAT = "Score by depth and length"
_PICTURES: list[tuple[str, Callable[[Axes, Result], None]]] = [
    ("Divergence against bits", _rate),
    (_BY_DEPTH, _depth),
    (_HEAT, _heat),
]
