"""The best paths of 8 groups at a time, each in a lane of its own.

Costs are [class, group]: a step reads rows of 8 costs and spreads single levels over the groups, so that nothing moves
between lanes and most of what is read is small. Otherwise this is `trellis`, which takes one group at a time: the same
costs, bit for bit, and the same paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import get_f32, get_i32, put_i32, splat_f, store_f
from polykv.fast.cpu.simd_trellis import (
    CLASSES,
    STEP,
    block4,
    block8,
    equal64,
    least,
    lowest,
    matches_column4,
    matches_column8,
    spaced,
)
from polykv.fast.cpu.trellis_tables import ODD, RANK

# Bytes of the costs of all classes of 8 groups.
ROWS = 8 * CLASSES
ZERO = np.float32(0)


@kernel(inlined=True)
def _forward(values: Any, bits: int, book: int, costs: int) -> None:
    """A step: from the costs before it to those after it, which lie behind them."""
    if bits == 3:
        for j in range(8):
            block8(values, costs + 8 * STEP * j, book + 256 * j, costs + ROWS + STEP * j)
    else:
        for j in range(16):
            block4(values, costs + 4 * STEP * j, book + 64 * j, costs + ROWS + STEP * j)


@kernel(inlined=True)
def _sources(value: Any, bits: int, trellis: int, costs: int, kept: int, cost: int) -> Any:
    """Which of the states that leave class `kept` have the cost of that class, one bit each; costs: of one lane."""
    old, book = costs + STEP * ((kept << bits) & 63), trellis + 4 * (kept << bits)
    if bits == 3:
        return matches_column8(value, cost, old, book)
    return matches_column4(value, cost, old, book)


@kernel()
def _last(value: Any, bits: int, trellis: int, costs: int, spare: int) -> Any:
    """The last state of a lane: of those with the least cost the one of lowest rank."""
    for kept in range(64):
        put_i32(spare + 4 * kept, get_i32(costs + ROWS + STEP * kept))
    cost = least(spare)
    classes = equal64(cost, spare)
    last, first = np.int64(0), np.float32(64 << bits)
    while classes:
        kept = lowest(classes)
        classes &= classes - 1
        found = _sources(value, bits, trellis, costs, kept, cost)
        while found:
            s = (kept << bits) + lowest(found)
            rank = get_f32(trellis + 4 * (RANK * (64 << bits) + s))
            if rank < first:
                last, first = s, rank
            found &= found - 1
    return last


@kernel()
def search8(x: int, step: int, lane: int, g: int, bits: int, trellis: int, work: int, states: int) -> None:
    """States uint32 of the best paths for 8 groups of g values x; work: `trellis.work_bytes(g)` bytes.

    Value t of group i lies at x + step t + lane i, its state goes to the like place of `states`, which may be x.
    """
    for row in range(0, ROWS, STEP):
        store_f(work + row, splat_f(ZERO))
    for t in range(g):
        _forward(spaced(x + step * t, lane), bits, trellis + 4 * ODD * (64 << bits), work + ROWS * t)
    spare, t = work + ROWS * (g + 1), g - 1
    for i in range(8):
        at = step * t + lane * i
        put_i32(states + at, _last(get_f32(x + at), bits, trellis, work + ROWS * t + 4 * i, spare))
    for t in range(g - 2, -1, -1):
        for i in range(8):
            at, costs = step * t + lane * i, work + ROWS * t + 4 * i
            kept = np.int64(get_i32(states + at + step)) & 63
            cost = get_i32(costs + ROWS + STEP * kept)
            s = (kept << bits) + lowest(_sources(get_f32(x + at), bits, trellis, costs, kept, cost))
            put_i32(states + at, s)
