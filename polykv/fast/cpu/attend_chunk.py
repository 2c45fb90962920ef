"""One chunk of 512 positions, one kv head, a tile of query rows: the unit of attention whose order is fixed.

Keys are cut at absolute multiples of 512. In a chunk, units (64 positions, at absolute multiples too) are folded in
order of position with online softmax from the empty state; the results of chunks are merged in order. Who computes a
chunk, next to which other rows, how large blocks are, and how the keys were cut into segments therefore cannot change a
bit of a row's result.

A unit takes less than a microsecond for few rows, so what surrounds it reads plain memory by address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_job import (
    BLOCK_PTR,
    BLOCKS,
    FIRST_CELL,
    FOLD,
    K_DATA,
    K_GEOM,
    K_PITCH,
    LENGTH,
    N_HEADS,
    N_KV,
    N_SEGMENTS,
    POSITIONS,
    ROW_PTR,
    ROWS,
    START,
    V_DATA,
    V_GEOM,
    V_PITCH,
    WINDOW,
)
from polykv.fast.cpu.attend_softmax import NONE
from polykv.fast.cpu.attend_unit import (
    ACC,
    FIELDS,
    FIRST,
    MAX,
    NEXT_K,
    NEXT_V,
    PIECES,
    REC_K,
    REC_V,
    SPAN,
    SUM,
    V_DIMS,
    pieces_per_record,
    span_pitch,
)
from polykv.fast.cpu.attend_unit import ROWS as N_TILE
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.entry import invoke
from polykv.fast.cpu.kv_layout import BLOCK, GEOM, PIECE, RECORD
from polykv.fast.cpu.simd import get_i32, put_f32, put_i32, splat_f, store_f
from polykv.types import UNIT

CHUNK = 512
ZERO = np.float32(0)


@kernel(inlined=True)
def _entry(array: int, i: int) -> Any:
    """One int32 of an array at an address."""
    return np.int64(get_i32(array + 4 * i))


@kernel()
def _empty(d: Any) -> None:
    """The empty state of all rows of the tile."""
    rows = d[N_TILE] + 1
    for i in range(0, 4 * rows * d[V_DIMS], 32):
        store_f(d[ACC] + i, splat_f(ZERO))
    for r in range(rows):
        put_f32(d[MAX] + 4 * r, NONE)
        put_f32(d[SUM] + 4 * r, ZERO)


@kernel()
def _listed(rows: int, n: int, r0: int, r1: int) -> Any:
    """Where rows r0 .. r1 - 1 are among n listed ones: first index and one past the last."""
    first, last = n, 0
    for i in range(n):
        if r0 <= _entry(rows, i) < r1:
            first, last = min(first, i), i + 1
    return first, last


@kernel()
def _visible(
    span: int, pitch: int, rows: int, last: int, tile: Any, positions: int, unit: Any, window: int, group: int
) -> Any:
    """Fill `span` with the rows that see some of a unit's cells; returns how many.

    `last` listed rows from the address `rows`, of which those in tile = (r0, r1) count; unit = (base position, first
    cell, one past the last).
    """
    base, skip, n = unit
    count = 0
    for i in range(last):
        r = _entry(rows, i)
        if r < tile[0] or r >= tile[1]:
            continue
        seen = _entry(positions, r) + 1 - base
        hi = min(seen, n)
        lo = max(seen - window, skip) if window > 0 else skip
        if lo < hi:
            for j in range(group):
                at = span + 4 * count
                put_i32(at, np.int32((r - tile[0]) * group + j))
                put_i32(at + pitch, np.int32(lo))
                put_i32(at + 2 * pitch, np.int32(hi))
                count += 1
    return count


@kernel()
def _seen(rows: int, last: int, tile: Any, positions: int) -> Any:
    """The least and the most cells that a row of the tile sees, of `last` listed ones (without regard to windows)."""
    least, most = 1 << 60, 0
    for i in range(last):
        r = _entry(rows, i)
        if tile[0] <= r < tile[1]:
            cells = _entry(positions, r) + 1
            least, most = min(least, cells), max(most, cells)
    return least, most


@kernel()
def _gather(d: Any, blocks: int, at: int, skip: int, n: int, size: int, k: Any, v: Any) -> None:
    """Tell `fold_unit` where the pieces of a unit are: its cells skip..n-1, from cell `at` of a segment on.

    d: its descriptor; k, v: address of the record of block 0, and bytes from block to block.
    """
    b = at // size
    t = at - b * size
    block = _entry(blocks, b)
    for i in range(PIECES):
        # Absent pieces before and after are stood in for by their neighbours.
        if t == size and i * PIECE < n:
            b, t = b + 1, 0
            block = _entry(blocks, b)
        d[REC_K + i], d[REC_V + i], d[FIRST + i] = k[0] + block * k[1], v[0] + block * v[1], min(t, size - PIECE)
        if i * PIECE >= skip:
            t += PIECE


@kernel(inlined=True)
def _advance(d: Any) -> None:
    """The unit that was foreseen is the one to fold: for blocks of one piece, whose shares are their records."""
    for i in range(UNIT // PIECE):
        d[REC_K + i], d[REC_V + i] = d[NEXT_K + i], d[NEXT_V + i]
    d[REC_K + UNIT // PIECE], d[REC_V + UNIT // PIECE] = d[NEXT_K + UNIT // PIECE - 1], d[NEXT_V + UNIT // PIECE - 1]


@kernel(inlined=True)
def _foresee(d: Any, blocks: int, n_blocks: int, at: int, shape: Any, k: Any, v: Any) -> None:
    """Name what the unit that begins at cell `at` of a segment will read, for `fold_unit` to bring near meanwhile.

    shape: tokens of a block, pieces of a unit in a record, bytes of a piece's share of a record of K and of V.
    """
    size, per, k_share, v_share = shape
    b, part = max(at, 0) // size, 0
    for i in range(UNIT // PIECE):
        if b >= n_blocks:
            # Nothing more: what is near already.
            d[NEXT_K + i], d[NEXT_V + i] = d[REC_K], d[REC_V]
            continue
        block = _entry(blocks, b)
        d[NEXT_K + i], d[NEXT_V + i] = k[0] + block * k[1] + part * k_share, v[0] + block * v[1] + part * v_share
        part += 1
        if part == per:
            b, part = b + 1, 0


@kernel()
def fold_chunk(job: Any, chunk: int, g: int, r0: int, r1: int, work: int, then: Any) -> None:
    """Attention of kv head g of rows r0 .. r1 - 1 over the keys of one chunk: their states, from the empty one.

    then = (chunk, kv head) that this worker probably does next.
    """
    d = longs(work, FIELDS)
    _empty(d)
    k_geom, v_geom = longs(job[K_GEOM], GEOM), longs(job[V_GEOM], GEOM)
    k = (job[K_DATA] + g * job[K_PITCH], k_geom[RECORD])
    v = (job[V_DATA] + g * job[V_PITCH], v_geom[RECORD])
    near = (then[0], job[K_DATA] + then[1] * job[K_PITCH], job[V_DATA] + then[1] * job[V_PITCH])
    low, high = chunk * CHUNK, (chunk + 1) * CHUNK
    for s in range(job[N_SEGMENTS]):
        start = _entry(job[START], s)
        if start < high and start + _entry(job[LENGTH], s) > low:
            rows = job[ROWS] + 4 * _entry(job[ROW_PTR], s)
            first, last = _listed(rows, _entry(job[ROW_PTR], s + 1) - _entry(job[ROW_PTR], s), r0, r1)
            if first < last:
                _fold_segment(job, s, low, high, (rows + 4 * first, last - first), (r0, r1), work, k, v, near)


@kernel()
def _fold_segment(
    job: Any, s: int, low: int, high: int, listed: Any, tile: Any, work: int, k: Any, v: Any, then: Any
) -> None:
    """Fold the units of segment s at positions low .. high - 1.

    listed: address and number of listed rows, of which those in `tile` count; k, v: as in `_gather`; then: the chunk
    that probably comes next, with the addresses of its records of block 0.
    """
    d = longs(work, FIELDS)
    k_geom, v_geom, window, group = longs(job[K_GEOM], GEOM), longs(job[V_GEOM], GEOM), job[WINDOW], job[N_HEADS]
    per, group = pieces_per_record(k_geom), group // job[N_KV]
    shape = (k_geom[BLOCK], per, k_geom[RECORD] // per, v_geom[RECORD] // per)
    (rows, last), span, pitch, positions = listed, d[SPAN], span_pitch(d[N_TILE]), job[POSITIONS]
    blocks = job[BLOCKS] + 4 * _entry(job[BLOCK_PTR], s)
    n_blocks = _entry(job[BLOCK_PTR], s + 1) - _entry(job[BLOCK_PTR], s)
    start = _entry(job[START], s)
    end = start + _entry(job[LENGTH], s)
    stop = min(high, end)
    least, most = _seen(rows, last, tile, positions)
    count, held, foreseen = 0, False, False
    for base in range(max(low, start // UNIT * UNIT), stop, UNIT):
        # The first unit of a segment may have lost its first blocks to a sliding window; of the first unit of all, some
        # cells may be exact ones, which are elsewhere.
        skip, n = max(0, start - base), min(UNIT, end - base)
        # Most units are whole and seen by all rows, which need not be found anew.
        hidden = max(skip, job[FIRST_CELL] - base)
        plain = hidden == 0 and n == UNIT and least >= base + n and (window == 0 or most - window <= base)
        if not (plain and held):
            count = _visible(span, pitch, rows, last, tile, positions, (base, hidden, n), window, group)
        held = plain
        foreseen = foreseen and count > 0
        if count > 0:
            if foreseen and plain and shape[0] == PIECE:
                _advance(d)
            else:
                _gather(d, blocks, base + skip - start, skip, n, shape[0], k, v)
            foreseen = base + UNIT < stop
            if foreseen:
                _foresee(d, blocks, n_blocks, base + UNIT - start, shape, k, v)
            else:
                _foresee(d, blocks, n_blocks, then[0] * CHUNK - start, shape, (then[1], k[1]), (then[2], v[1]))
            invoke(job[FOLD], (work, skip, n, count))
