"""Whether an overview means anything, and whether what it shows is good enough.

A campaign begins and ends with the exact types (anchors) and has a type of 8 bits as a control. Void is a campaign
whose anchors differ, in which exact types differ from themselves, whose control moves predictions, or that did not run
the types that it names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from enum import StrEnum
from typing import Any

from polykv.evals.gate import cut_off
from polykv.evals.result import Cell
from polykv.evals.statistics import Z95, wilson

# The control passes with at least this share of equal top tokens, and at most this divergence.
CONTROL, CONTROL_SAME, CONTROL_KLD = "q8_0", 0.97, 0.03
# A text that a pair writes should not surprise the exact run more than that, or than so many times what the exact run
# thinks of its own; greedy texts of a sound model have perplexity 1 to 4.
COHERENT_PPL, COHERENT_TIMES = 20.0, 4.0
# A text of which so much repeats itself (`loops.repeated`) is nonsense, however likely, unless exact runs do so, too.
CIRCULAR = 0.5
# What a gate cannot say when there is nothing to lose.
NO_RECALL = "the exact run answers none of the questions: that no answer is lost means nothing"
# Anchors whose speeds differ by more make speeds of this run a guess.
DRIFT = 0.2


class Role(StrEnum):
    """What a cell is there for."""

    FIRST = "first"
    ARM = "arm"
    CONTROL = "control"
    LAST = "last"


def control_reason(cell: Cell, positions: int, *, rounded: bool = False) -> list[str]:
    """Why a control fails, if it does. positions: that were compared. rounded: activations were, which adds to the
    divergence.

    Over few positions a sound type may fail by chance: one that moves two of a hundred tokens moves four of the first
    hundred in one run of seven. The bar stays what it is, and the message says that.
    """
    if cell["same_top"] >= CONTROL_SAME and cell["kld"] <= CONTROL_KLD:
        return []
    _, same = wilson(cell["same_top"] * positions, positions)
    chance = same >= CONTROL_SAME and cell["kld"] - Z95 * cell["kld_error"] <= CONTROL_KLD
    coarse = ", and rounding of activations (--activations q8) adds to it" if rounded else ""
    coarse += "; with so few positions that may be chance: measure more" if chance else ""
    return [
        f"the control {CONTROL} has the same top token at {cell['same_top']:.1%} of {positions:,} positions and "
        f"divergence {cell['kld']:.3g}; a sound run has at least {CONTROL_SAME:.0%} and at most {CONTROL_KLD:g}{coarse}"
    ]


def not_finite(cells: list[Cell], names: Seq[str]) -> list[str]:
    """Reasons against cells in which one of these figures is no number: the types broke the predictions."""
    return [
        f"{c['kv']}: {name} is not a finite number"
        for c in cells
        for name in names
        if name in c and not math.isfinite(c[name])
    ]


def invalid(cells: list[Cell], max_ppl: float) -> list[str]:
    """Reasons against the whole, for the cells of one context."""
    failed = [c for c in cells if "error" in c]
    if failed:
        return [f"{c['kv']} ({c['role']}) was not measured: {c['error']}" for c in failed]
    first, last = (next(c for c in cells if c["role"] == role) for role in (Role.FIRST, Role.LAST))
    reasons = []
    if first["trace"] != last["trace"] or first["kld"] != last["kld"] or first["ppl"] != last["ppl"]:
        reasons.append(f"{first['kv']} gave other figures at the end than at the beginning")
    for cell in (first, last):
        if cell["kld_max"] != 0 or cell["mean_tv"] != 0 or cell["trace"] != cell["base_trace"]:
            reasons.append(f"{cell['kv']} differs from itself ({cell['role']})")
    if len({c["base_trace"] for c in cells}) > 1:
        reasons.append("the exact run gave other figures in another process")
    control = next((c for c in cells if c["kv"] == CONTROL), None)
    reasons += [] if control is None else control_reason(control, control["kld_positions"])
    if not first["base_ppl"] <= max_ppl:
        reasons.append(f"perplexity {first['base_ppl']:.4g} is above {max_ppl:g}: the model does not know such texts")
    reasons += [reason for c in cells for reason in c["exact"]]
    reasons += not_finite(cells, ("kld", "ppl", "text_ppl", "mean_tv"))
    reasons += [f"{c['kv']}: the types that ran are {', '.join(c['tiers'])}" for c in cells if not c["engaged"]]
    return reasons


def verdict(cell: Cell) -> str:
    """Of one pair: what it fails, or PASS."""
    if not cell["coherent"]:
        return "INCOHERENT"
    return "PASS" if cell["passes"] else "FAIL"


def drift(cells: list[Cell]) -> float | None:
    """Relative change of the decoding speed of the exact types, from the beginning to the end."""
    speeds = {c["role"]: c["decode_tok_s"] for c in cells if "error" not in c}
    if Role.FIRST not in speeds or Role.LAST not in speeds:
        return None
    return float(speeds[Role.LAST] / speeds[Role.FIRST] - 1)


def remarks(cells: list[Cell]) -> list[str]:
    """What a reader of one context's cells should know, in words; they have their stamps."""
    measured = [c for c in cells if "error" not in c]
    if not measured:
        return []
    found = []
    moved = drift(measured)
    if moved is not None and abs(moved) > DRIFT:
        way = "faster" if moved > 0 else "slower"
        found.append(f"{cells[0]['kv']} decoded {abs(moved):.0%} {way} at the end: speeds of this run are a guess")
    for what in ("machine", "polykv", "commit"):
        if len({str(c["stamp"][what]) for c in measured}) > 1:
            found.append(f"the cells differ in {what}: speeds of some cannot be compared with those of others")
    # What is added to a stored campaign comes after its anchors.
    end = max((c["stamp"]["date"] for c in measured if c["role"] == Role.LAST), default=None)
    late = [c["kv"] for c in measured if end is not None and c["stamp"]["date"] > end]
    if late:
        found.append(f"measured after the last exact run, so speeds have no anchor: {', '.join(late)}")
    if not any(c["base_recall"] for c in measured):
        found.append(NO_RECALL)
    if any(c["repeats"] >= CIRCULAR for c in measured if c["role"] in (Role.FIRST, Role.LAST)):
        found.append("the exact run repeats itself after this text: that others do cannot be held against them")
    return found + cut_off(measured)


def relative(cells: list[Cell]) -> list[Cell]:
    """The cells with what only a comparison tells: `decode_ratio`, `prefill_ratio`, `smaller`, `nonsense`, which is
    what is wrong with what a pair wrote, and `coherent`, whether nothing is.

    They are compared with the mean of both anchors, so that a slow drift of the machine counts half. Without anchors
    there are no ratios.
    """
    anchors = [c for c in cells if c["role"] in (Role.FIRST, Role.LAST) and "error" not in c]

    def against(cell: Cell) -> dict[str, Any]:
        if "error" in cell:
            return {}
        found: dict[str, Any] = {"smaller": cell["f16_bytes"] / cell["kv_bytes"]}
        if anchors:
            for name, key in (("decode_ratio", "decode_tok_s"), ("prefill_ratio", "prefill_tok_s")):
                found[name] = cell[key] / (sum(a[key] for a in anchors) / len(anchors))
        wrong = _nonsense(cell, anchors)
        return found | {"nonsense": wrong, "coherent": not wrong}

    return [cell | against(cell) for cell in cells]


def _nonsense(cell: Cell, anchors: list[Cell]) -> str:
    """What is wrong with what a pair wrote, or ""."""
    limit = COHERENT_PPL
    if anchors:
        limit = max(limit, COHERENT_TIMES * sum(a["text_ppl"] for a in anchors) / len(anchors))
    # Not a number is not coherent.
    if not cell["text_ppl"] <= limit:
        return "writes what the exact run finds unlikely"
    if cell["repeats"] >= CIRCULAR and not any(a["repeats"] >= CIRCULAR for a in anchors):
        return f"repeats itself: {cell['repeats']:.0%} of what it writes is the same few tokens"
    return ""
