"""One chunk of 512 positions, one kv head, a tile of query rows: the unit of attention whose order is fixed.

Keys are cut at absolute multiples of 512. In a chunk, units of up to 64 tokens are folded in order of position with
online softmax from the empty state; the results of chunks are merged in order. Who computes a chunk, next to which
other rows, and how the keys were cut into segments therefore cannot change a bit of a row's result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_softmax import NONE, UNIT
from polykv.fast.cpu.encode_row import LLOYD_
from polykv.fast.cpu.entry import invoke
from polykv.fast.cpu.fwht import rotate
from polykv.fast.cpu.kv_layout import BLOCK, DIM, FAMILY, GROUP, RECORD, SIGNS1, SIGNS2, STORED

CHUNK = 512


@kernel()
def prepare_queries(q: Any, r0: int, r1: int, g: int, group: int, scale: Any, geom: Any, table: Any, out: Any) -> None:
    """out [(r1-r0)*group + 1, D'] = scaled (and, for rotated keys, rotated) queries of kv head g; last row zero."""
    dim = geom[DIM]
    out[out.shape[0] - 1] = 0
    for r in range(r0, r1):
        for j in range(group):
            row = out[(r - r0) * group + j]
            for d in range(dim):
                row[d] = q[r, g * group + j, d] * scale
            row[dim:] = 0
            if geom[FAMILY] == LLOYD_:
                rotate(row, 0, geom[STORED], geom[GROUP], table, SIGNS1, SIGNS2)


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
def _visible(rows: Any, positions: Any, r0: int, start: int, n: int, window: int, group: int, span: Any) -> Any:
    """Fill `span` with the rows that see some of the n cells from position `start`; returns how many."""
    count = 0
    for i in range(rows.shape[0]):
        pos = positions[r0 + rows[i]]
        hi = min(pos + 1 - start, n)
        lo = max(pos + 1 - window - start, 0) if window > 0 else 0
        if lo < hi:
            for j in range(group):
                span[0, count] = rows[i] * group + j
                span[1, count] = lo
                span[2, count] = hi
                count += 1
    return count


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
    blocks, block_ptr, starts, lengths = seg[0], seg[1], seg[2], seg[3]
    found, ptr = local
    size = geom[0][BLOCK]
    low, high = chunk * CHUNK, (chunk + 1) * CHUNK
    for s in range(starts.shape[0]):
        rows = found[ptr[s] : ptr[s + 1]]
        end = starts[s] + lengths[s]
        if rows.shape[0] == 0 or end <= low or starts[s] >= high:
            continue
        for b in range(max(0, (low - starts[s]) // size), block_ptr[s + 1] - block_ptr[s]):
            at = starts[s] + b * size
            if at >= min(high, end):
                break
            cell = np.int64(blocks[block_ptr[s] + b]) * heads + g
            for t in range(0, size, UNIT):
                # A unit belongs to the chunk of its first position, even if a block size makes it reach further.
                n = min(min(UNIT, size - t), end - at - t)
                if n > 0 and low <= at + t < high:
                    count = _visible(rows, seg[6], r0, at + t, n, window, group, span)
                    if count > 0:
                        rec_k, rec_v = records[0] + cell * geom[0][RECORD], records[1] + cell * geom[1][RECORD]
                        invoke(fold, (work, rec_k, rec_v, t, n, count))
