"""The best paths of 8 groups at a time, each in a lane of its own.

Costs are [class, group]: a step reads rows of 8 costs and spreads single levels over the groups, so that nothing moves
between lanes and most of what is read is small. Otherwise this is `trellis`, which takes one group at a time: the same
costs, bit for bit, and the same paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import get_f32, get_i32, put_f32, put_i32, splat_f, store_f
from polykv.fast.cpu.simd_trellis import (
    CLASSES,
    STEP,
    block4,
    block8,
    equal8,
    least8,
    lowest,
    matches_lane4,
    matches_lane8,
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
def _sources(value: Any, bits: int, trellis: int, costs: int, lane: int, kept: int, cost: int) -> Any:
    """Which of the states that leave class `kept` have the cost of that class in a lane, one bit each."""
    old, book = costs + STEP * ((kept << bits) & 63), trellis + 4 * (kept << bits)
    if bits == 3:
        return matches_lane8(value, cost, old, np.int32(lane), book)
    return matches_lane4(value, cost, old, np.int32(lane), book)


@kernel()
def _last(x: int, lane: int, bits: int, trellis: int, costs: int, spare: int, states: int) -> None:
    """The last states of all lanes: of those with the least cost the one of lowest rank.

    Value i lies at x + lane i, its state goes to the like place of `states`, which may be x; spare: 64 bytes.
    """
    end, n, found = costs + ROWS, 64 << bits, spare + 32
    cost = least8(end)
    store_f(spare, splat_f(np.float32(n)))
    for kept in range(64):
        lanes = equal8(cost, end + STEP * kept)
        while lanes:
            i = lowest(lanes)
            lanes &= lanes - 1
            least = get_i32(end + STEP * kept + 4 * i)
            sources = _sources(get_f32(x + lane * i), bits, trellis, costs, i, kept, least)
            while sources:
                s = (kept << bits) + lowest(sources)
                sources &= sources - 1
                rank = get_f32(trellis + 4 * (RANK * n + s))
                if rank < get_f32(spare + 4 * i):
                    put_f32(spare + 4 * i, rank)
                    put_i32(found + 4 * i, np.int32(s))
    for i in range(8):
        put_i32(states + lane * i, get_i32(found + 4 * i))


@kernel(inlined=True)
def _back(x: int, bits: int, trellis: int, costs: int, i: int, states: int, after: int) -> None:
    """State of lane i at a step whose value is at x, from the state after it; costs: those before the step."""
    kept = np.int64(get_i32(after)) & 63
    cost = get_i32(costs + ROWS + STEP * kept + 4 * i)
    put_i32(states, np.int32((kept << bits) + lowest(_sources(get_f32(x), bits, trellis, costs, i, kept, cost))))


@kernel()
def search8(x: int, step: int, lane: int, g: int, bits: int, trellis: int, work: int, states: int) -> None:
    """States uint32 of the best paths for 8 groups of g values x; work: `trellis.work_bytes(g)` bytes.

    Value t of group i lies at x + step t + lane i, its state goes to the like place of `states`.
    """
    # Vectors that lie across two cache lines cost twice.
    work, book = (work + 63) // 64 * 64, trellis + 4 * ODD * (64 << bits)
    for row in range(0, ROWS, STEP):
        store_f(work + row, splat_f(ZERO))
    for t in range(g):
        _forward(spaced(x + step * t, lane), bits, book, work + ROWS * t)
    t = g - 1
    _last(x + step * t, lane, bits, trellis, work + ROWS * t, work + ROWS * (g + 1), states + step * t)
    for t in range(g - 2, -1, -1):
        for i in range(8):
            at = step * t + lane * i
            _back(x + at, bits, trellis, work + ROWS * t, i, states + at, states + at + step)
