"""One chunk of 512 positions, one kv head, a tile of query rows: the unit of attention whose order is fixed.

Keys are cut at absolute multiples of 512. In a chunk, units (64 positions, at absolute multiples too) are folded in
order of position with online softmax from the empty state; the results of chunks are merged in order. Who computes a
chunk, next to which other rows, how large blocks are, and how the keys were cut into segments therefore cannot change a
bit of a row's result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_softmax import NONE
from polykv.fast.cpu.attend_unit import FIELDS, FIRST, PIECES, REC_K, REC_V
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.entry import invoke
from polykv.fast.cpu.kv_layout import BLOCK, PIECE, RECORD
from polykv.fast.cpu.simd import prefetch
from polykv.types import UNIT

CHUNK = 512


@kernel()
def rows_of_tile(seg: Any, r0: int, r1: int) -> Any:
    """Rows of each segment that lie in [r0, r1), less r0, in CSR form."""
    rows, row_ptr = seg[4], seg[5]
    found = np.empty(rows.shape[0], np.int32)
    ptr = np.zeros(row_ptr.shape[0], np.int32)
    n = 0
    for s in range(row_ptr.shape[0] - 1):
        for i in range(row_ptr[s], row_ptr[s + 1]):
            if r0 <= rows[i] < r1:
                found[n] = rows[i] - r0
                n += 1
        ptr[s + 1] = n
    return found, ptr


@kernel()
def _visible(rows: Any, r0: int, seg: Any, base: int, skip: int, n: int, window: int, group: int, span: Any) -> Any:
    """Fill `span` with the rows that see some of cells skip..n-1 from position `base`; returns how many."""
    count = 0
    for i in range(rows.shape[0]):
        pos = seg[6][r0 + rows[i]]
        hi = min(pos + 1 - base, n)
        lo = max(pos + 1 - window - base, skip) if window > 0 else skip
        if lo < hi:
            for j in range(group):
                span[0, count] = rows[i] * group + j
                span[1, count] = lo
                span[2, count] = hi
                count += 1
    return count


@kernel()
def _gather(
    d: Any, blocks: Any, at: int, skip: int, n: int, size: int, k: int, k_step: int, v: int, v_step: int
) -> None:
    """Tell `fold_unit` where the pieces of a unit are: its cells skip..n-1, from cell `at` of a segment on.

    d: its descriptor; k, v: addresses of the records of block 0; k_step, v_step: bytes from block to block.
    """
    b, t = at // size, at % size
    block = np.int64(blocks[b])
    for i in range(PIECES):
        # Absent pieces before and after are stood in for by their neighbours.
        if t == size and i * PIECE < n:
            b, t = b + 1, 0
            block = np.int64(blocks[b])
        d[REC_K + i], d[REC_V + i], d[FIRST + i] = k + block * k_step, v + block * v_step, min(t, size - PIECE)
        if i * PIECE >= skip:
            t += PIECE


@kernel()
def _fetch(p: int, nbytes: int) -> None:
    """Bring a record of the next unit near: small blocks lie scattered, which the processor does not foresee."""
    for i in range(0, nbytes, 64):
        prefetch(p + i)


@kernel()
def fold_chunk(
    chunk: int,
    head: Any,
    local: Any,
    seg: Any,
    records: Any,
    geom: Any,
    window: int,
    fold: int,
    work: int,
    states: Any,
) -> None:
    """Attention of a tile of rows over the keys of one chunk: `states` (acc, m, l) from the empty state.

    head = (kv head, kv heads, query heads per kv head, first row); records, geom = K and V data addresses, layouts.
    """
    g, heads, group, r0 = head
    acc, m, l, span = states
    acc[:] = 0
    m[:] = NONE
    l[:] = 0
    block_ptr, starts, lengths = seg[1], seg[2], seg[3]
    found, ptr = local
    d, size = longs(work, FIELDS), geom[0][BLOCK]
    k, v = records[0] + g * geom[0][RECORD], records[1] + g * geom[1][RECORD]
    k_step, v_step = heads * geom[0][RECORD], heads * geom[1][RECORD]
    low, high = chunk * CHUNK, (chunk + 1) * CHUNK
    for s in range(starts.shape[0]):
        rows = found[ptr[s] : ptr[s + 1]]
        start, end = starts[s], starts[s] + lengths[s]
        if rows.shape[0] == 0 or end <= low or start >= high:
            continue
        blocks = seg[0][block_ptr[s] : block_ptr[s + 1]]
        for base in range(max(low, start // UNIT * UNIT), min(high, end), UNIT):
            # The first unit of a segment may have lost its first blocks to a sliding window.
            skip, n = max(0, start - base), min(UNIT, end - base)
            count = _visible(rows, r0, seg, base, skip, n, window, group, span)
            if count > 0:
                ahead = (base + UNIT - start) // size
                for b in range(ahead, min(ahead + UNIT // size, blocks.shape[0])):
                    _fetch(k + np.int64(blocks[b]) * k_step, geom[0][RECORD])
                    _fetch(v + np.int64(blocks[b]) * v_step, geom[1][RECORD])
                _gather(d, blocks, base + skip - start, skip, n, size, k, k_step, v, v_step)
                invoke(fold, (work, skip, n, count))
