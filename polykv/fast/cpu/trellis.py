"""The search of trellis codes: best paths for groups of values (twin of `polykv.ref.trellis`).

    search(x, n, g, bits, trellis, work, states)

All pointers are addresses; nothing is allocated. `trellis` is that of what `trellis_tables.constants` makes of a codec,
`work` that of `work_bytes(g)` bytes of scratch memory. What surrounds a search is in `encode_trellis`.

A step takes 2^L differences, fused products with sums, and minima, in vectors of 8, whose lanes `simd_trellis`
explains. Only costs are kept, 256 bytes a step. Tracing back asks which of the 2^k predecessors of a state gives
exactly the cost that was found, the lowest of them as the format says, and so does the work of one vector again. Each
answer needs the one before; a few groups are traced back in turn, so that their waiting overlaps. Where there are eight
groups, each has a lane of its own (`trellis_lanes`): the same arithmetic, and so the same paths, with less loading.

Where the processor has fused multiply-adds, a cost is rounded once a step and not twice as in the reference. So the
error of a path's sum is not larger than there, and paths are those of the reference unless two of them cost the same to
within that error, some 1e-7 of the cost. Where costs are exact, so are ties, and the rules of the format decide.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import get_f32, get_i32, put_i32, splat_f, store_f
from polykv.fast.cpu.simd_trellis import (
    CLASSES,
    equal64,
    least,
    lowest,
    matches_column4,
    matches_column8,
    matches_row,
    step4,
    step8_even,
    step8_odd,
)
from polykv.fast.cpu.trellis_lanes import search8
from polykv.fast.cpu.trellis_tables import EVEN, ODD, RANK, parts
from polykv.types import F32

ZERO = np.float32(0)
# Groups that are traced back in turn.
TOGETHER = 4


def viterbi(x: F32, codebook: F32, bits: int) -> Any:
    """The states int64 [n, g] of the paths of least squared error for x [n, g] (twin of `ref.trellis.viterbi`).

    The codebook has 64 << bits float32, bits is 2 or 3.
    """
    if bits not in (2, 3) or codebook.shape != (64 << bits,):
        raise ValueError(f"no kernel for {bits} bits and a codebook of shape {codebook.shape}")
    x, table = np.ascontiguousarray(x, np.float32), parts(codebook.astype(np.float32), bits)
    n, g = x.shape
    work, states = np.empty(work_bytes(g), np.uint8), np.empty((n, g), np.uint32)
    search(x.ctypes.data, n, g, bits, table.ctypes.data, work.ctypes.data, states.ctypes.data)
    return states.astype(np.int64)


@kernel()
def work_bytes(group: int) -> Any:
    """Bytes of scratch memory for groups of up to `group` values: costs before and after every step, and some spare."""
    return 8 * CLASSES * (group + 1) + CLASSES + 64


@kernel(inlined=True)
def _forward(x: int, t: int, bits: int, n: int, trellis: int, costs: int) -> None:
    """Step t: from the costs before it to those after it."""
    value = get_f32(x + 4 * t)
    if bits == 2:
        step4(value, costs, trellis + 4 * EVEN * n)
    elif t & 1:
        step8_odd(value, costs, trellis + 4 * ODD * n)
    else:
        step8_even(value, costs, trellis + 4 * EVEN * n)


@kernel(inlined=True)
def _turned(h: int) -> Any:
    """Three bits, each one place up, the highest to the lowest."""
    return (h << 1 | h >> 2) & 7


@kernel(inlined=True)
def _place(kept: int, t: int, bits: int) -> Any:
    """Where the cost of a class before step t lies, in bytes."""
    if bits == 2:
        return 4 * (8 * (kept & 7) + _turned(kept >> 3))
    return 4 * kept if t & 1 else 4 * (8 * (kept & 7) + (kept >> 3))


@kernel(inlined=True)
def _sources(x: int, t: int, bits: int, trellis: int, costs: int, kept: int, cost: int) -> Any:
    """Which of the states of step t that leave class `kept` have the cost of that class, one bit each."""
    value, book = get_f32(x + 4 * t), trellis + 4 * (kept << bits)
    if bits == 2:
        old = costs + 4 * (32 * (kept & 1) + _turned(kept >> 1 & 7))
        return matches_column4(value, cost, old, book)
    if t & 1:
        return matches_row(value, cost, costs + 32 * (kept & 7), book)
    return matches_column8(value, cost, costs + 4 * (kept & 7), book)


@kernel(inlined=True)
def _back(x: int, t: int, bits: int, trellis: int, costs: int, kept: int) -> Any:
    """The state of step t on the best path to the class `kept` after it; costs: those before the step."""
    cost = get_i32(costs + CLASSES + _place(kept, t + 1, bits))
    return (kept << bits) + lowest(_sources(x, t, bits, trellis, costs, kept, cost))


@kernel()
def _class_at(i: int, t: int, bits: int) -> Any:
    """The class whose cost before step t is number i of 64: the inverse of `_place`."""
    if bits == 2:
        return (i >> 3) + 8 * _turned(_turned(i & 7))
    return i if t & 1 else 8 * (i & 7) + (i >> 3)


@kernel()
def _last(x: int, t: int, bits: int, n: int, trellis: int, costs: int) -> Any:
    """The last state: of those with the least cost the one of lowest rank."""
    cost = least(costs + CLASSES)
    places = equal64(cost, costs + CLASSES)
    last, first = np.int64(0), np.float32(n)
    while places:
        kept = _class_at(lowest(places), t + 1, bits)
        found = _sources(x, t, bits, trellis, costs, kept, cost)
        places &= places - 1
        while found:
            s = (kept << bits) + lowest(found)
            rank = get_f32(trellis + 4 * (RANK * n + s))
            if rank < first:
                last, first = s, rank
            found &= found - 1
    return last


@kernel()
def _trace(x: int, n: int, g: int, bits: int, trellis: int, work: int, states: int) -> None:
    """States of up to TOGETHER groups whose costs are known, from the last to the first, all groups in turn."""
    n_states, size = 64 << bits, CLASSES * (g + 1)
    for i in range(n):
        t = g - 1
        s = _last(x + 4 * g * i, t, bits, n_states, trellis, work + size * i + CLASSES * t)
        put_i32(states + 4 * (g * i + t), s)
    for t in range(g - 2, -1, -1):
        for i in range(n):
            to = states + 4 * (g * i + t)
            kept = np.int64(get_i32(to + 4)) & 63
            put_i32(to, _back(x + 4 * g * i, t, bits, trellis, work + size * i + CLASSES * t, kept))


@kernel()
def search(x: int, n: int, g: int, bits: int, trellis: int, work: int, states: int) -> None:
    """States uint32 [n, g] of the paths of least squared error for x float32 [n, g]: groups that are rotated, of unit
    norm, in the units of the codebook. What is not finite gets some path."""
    for first in range(0, n // 8 * 8, 8):
        search8(x + 4 * g * first, 4, 4 * g, g, bits, trellis, work, states + 4 * g * first)
    for first in range(n // 8 * 8, n, TOGETHER):
        count = min(n - first, TOGETHER)
        _search(x + 4 * g * first, count, g, bits, trellis, work, states + 4 * g * first)


@kernel()
def _search(x: int, n: int, g: int, bits: int, trellis: int, work: int, states: int) -> None:
    """The same for up to TOGETHER groups."""
    n_states, size = 64 << bits, CLASSES * (g + 1)
    for i in range(n):
        for place in range(0, CLASSES, 32):
            store_f(work + size * i + place, splat_f(ZERO))
    for t in range(g):
        for i in range(n):
            _forward(x + 4 * g * i, t, bits, n_states, trellis, work + size * i + CLASSES * t)
    _trace(x, n, g, bits, trellis, work, states)
