"""The gate of context shift: does a model that counts go on counting when half of a full context is dropped?

A prompt counts from 1 to a number and fills about 60 % of the context; the answer overflows it. A sound engine writes
the next number first, every number one more than the one before, and none twice. Counting may survive a small fault,
so there is a second, sharper condition that needs no able model: after the shift, everything is as after a fresh prompt
of the kept tokens, predictions to rounding and tokens exactly (on cuda, whose rows depend on their batch, within stated
limits).

Pure functions; `shift_run` measures. (spec: context-shift gate.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Sequence as Seq

from polykv.evals.result import Cell

# Parts of the context that the prompt takes, and that are written after it: 6,000 tokens at 8,192.
PROMPT, ANSWER = 0.6, 6000 / 8192
# Where counting is measured when nothing is said, if the model has so much.
CONTEXT = 8192
# Most by which a logit after the shift may differ from that of a fresh prompt. On cpu it does not differ at all; on ref
# sums of other lengths round differently, and a rounded code may fall to the other side. A wrong position moves logits
# by tenths and more.
MOVED = 0.05
# On cuda rows depend on those beside them: products of many rows round weights to half precision, and levels are bytes.
# Keys one position off, the least of all faults, moved logits by 5 and 9 (docs/EVALS.md).
MOVED_BY_BATCHES = 0.5
# A whole number: one at the end of a text may go on.
_WHOLE = re.compile(r"\d+(?=\D)")
# Longer than any number that counting reaches.
_DIGITS = 12


def count_text(last: int) -> str:
    """Counting from 1 to `last`, to be continued.

    >>> count_text(3)
    '1, 2, 3,'
    """
    return ", ".join(map(str, range(1, last + 1))) + ","


def fitted(context: int, tokens: Callable[[str], int]) -> int:
    """The largest number to which a prompt counts within its part of the context; 0 when there is none."""
    low, high = 0, context
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(count_text(middle)) <= PROMPT * context else (low, middle)
    return low


def numbers(text: str) -> list[int]:
    """The whole numbers of a text in order.

    >>> numbers(" 4, 5, 6, 7")
    [4, 5, 6]
    """
    return [int(d) if len(d) <= _DIGITS else -1 for d in _WHOLE.findall(text)]


def counted(text: str, last: int) -> Cell:
    """What a continuation of `count_text(last)` is worth.

    first: number that it begins with; integers: how many; in_row: how many from the first on are right; longest_run:
    most in a row that are one more than the one before; max_repeat: how often the most frequent one occurs; counts:
    whether all of them are right.

    >>> counted(" 4, 5, 6, 9, 10, 1", 3)
    {'first': 4, 'integers': 5, 'in_row': 3, 'longest_run': 3, 'max_repeat': 1, 'counts': False}
    """
    found = numbers(text)
    run = longest = 0
    for i, n in enumerate(found):
        run = run + 1 if i and n == found[i - 1] + 1 else 1
        longest = max(longest, run)
    row = next((i for i, n in enumerate(found) if n != last + 1 + i), len(found))
    first = found[0] if found else None
    repeat = max(map(found.count, set(found)), default=0)
    return {
        "first": first,
        "integers": len(found),
        "in_row": row,
        "longest_run": longest,
        "max_repeat": repeat,
        "counts": bool(found) and first == last + 1 and longest == len(found) and repeat == 1,
    }


def limits(backend: str) -> tuple[float, float]:
    """Most by which logits may move, and most between two tokens that may be taken for each other."""
    return (MOVED_BY_BATCHES, MOVED_BY_BATCHES) if backend == "cuda" else (MOVED, 0.0)


def as_fresh(cell: Cell) -> bool:
    """Whether all after the shift was as after a fresh prompt of the kept tokens: no logit moved by more than the
    backend's limit, and tokens are the same up to one that was as likely (`gap`), within its limit."""
    moved, gap = limits(cell.get("backend", "cpu"))
    if cell["moved"] is None or cell["moved"] > moved:
        return False
    return bool(cell["fresh"]) or (cell.get("gap") is not None and cell["gap"] <= gap)


def passes(cell: Cell) -> bool:
    """Whether a candidate shifted, counted and was as a fresh prompt."""
    return cell["shifts"] > 0 and cell["counts"] and as_fresh(cell)


def verdict(cell: Cell, control: Cell) -> str:
    """PASS or FAIL; NO DATA without a shift, and where the control does not count either and nothing else is wrong."""
    if "error" in cell:
        return "NOT MEASURED"
    if passes(cell):
        return "PASS"
    if cell["moved"] is None:
        return "NO DATA"
    blind = "error" in control or control["moved"] is None or not control["counts"]
    return "NO DATA" if blind and as_fresh(cell) else "FAIL"


def invalid(cells: Seq[Cell]) -> list[str]:
    """Why figures mean nothing; the first cell is the control."""
    failed = [f"{c['kv']} was not measured: {c['error']}" for c in cells if "error" in c]
    if failed:
        return failed
    control, reasons = cells[0], [_no_shift(c) for c in cells if c["moved"] is None]
    if control["moved"] is not None and not control["counts"]:
        reasons.append(f"{control['kv']} {_stumbles(control)}: that says nothing about a shift, nor about other types")
    if control["moved"] is not None and not as_fresh(control):
        reasons.append(_not_fresh(control))
    reasons += [f"the gate passes a run with {c['kv']}" for c in cells if c["self_test"] and passes(c)]
    return reasons + [reason for c in cells for reason in c["exact"]]


def below(cells: Seq[Cell]) -> list[str]:
    """What is wrong with single candidates, the control and those that were damaged on purpose left out."""
    control, reasons = cells[0], list[str]()
    for c in cells[1:]:
        if verdict(c, control) == "FAIL" and not c["self_test"]:
            reasons.append(f"{c['kv']} {_stumbles(c)}" if as_fresh(c) else _not_fresh(c))
    return reasons


def _no_shift(cell: Cell) -> str:
    when = "nothing was written after the shift" if cell["shifts"] else "no shift happened"
    return (
        f"{cell['kv']}: {when}: a prompt of {cell['prompt']:,} tokens and {cell['generated']:,} more do not overflow "
        f"a context of {cell['ctx']:,} (--tokens, --count-to)"
    )


def _stumbles(cell: Cell) -> str:
    """Where counting went wrong."""
    if cell["in_row"] < cell["before"]:
        where = "before the shift"
    else:
        where = "after the shift" + ", as a fresh prompt of the kept tokens does" * as_fresh(cell)
    return f"counts {cell['in_row']:,} of {cell['integers']:,} numbers right and stumbles {where}"


def _not_fresh(cell: Cell) -> str:
    moved = "" if cell["moved"] is None else f", logits differ by {cell['moved']:.2g}"
    return f"{cell['kv']} does not go on after the shift as after a fresh prompt of the kept tokens{moved}"
