"""One chunk of 512 positions, one kv head, a tile of query rows: the unit of attention whose order is fixed.

Keys are cut at absolute multiples of 512. In a chunk, units of up to 64 tokens are folded in order of position with
online softmax from the empty state; the results of chunks are merged in order. Who computes a chunk, next to which
other rows, and how the keys were cut into segments therefore cannot change a bit of a row's result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_product import outputs, scores
from polykv.fast.cpu.attend_softmax import NONE, UNIT, fold_row
from polykv.fast.cpu.encode_row import LLOYD_
from polykv.fast.cpu.fwht import rotate
from polykv.fast.cpu.kv_layout import BLOCK, DIM, FAMILY, GROUP, RECORD, SIGNS1, SIGNS2, STORED
from polykv.fast.cpu.lift import WIDTH, lift_k, lift_v
from polykv.fast.cpu.simd import addr

CHUNK = 512


@kernel()
def width_of(geom: Any) -> int:
    """Dims that attention computes with: true ones, or all stored ones when they are rotated together."""
    return geom[STORED] if geom[FAMILY] == LLOYD_ else geom[DIM]


@kernel()
def prepare_queries(q: Any, r0: int, r1: int, g: int, group: int, scale: np.float32, k: Any, out: Any) -> None:
    """out [(r1-r0)*group + 1, D'] = scaled (and, for rotated keys, rotated) queries of kv head g; last row zero."""
    geom, table = k[1], k[2]
    dim = geom[DIM]
    out[:, dim:] = 0
    out[out.shape[0] - 1] = 0
    for r in range(r0, r1):
        for j in range(group):
            row = out[(r - r0) * group + j]
            for d in range(dim):
                row[d] = q[r, g * group + j, d] * scale
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
def _fold(rec_k: int, rec_v: int, t0: int, n: int, k: Any, v: Any, span: Any, count: int, cap: Any, work: Any) -> None:
    """Fold tokens t0..t0+n-1 of one record; span [i] = (local row, first, last visible token) of `count` rows."""
    q, s, acc, m, l, factor, panel = work
    at, square = addr(panel), addr(panel) + 4 * (panel.shape[0] - 128)
    padded = (count + 3) // 4 * 4
    # Rows are computed four at a time; the missing ones are the zero query, whose result nobody reads.
    for i in range(count, padded):
        span[0, i] = q.shape[0] - 1
        factor[i] = 0
        s[i] = 0
    rows = span[0]
    for t in range(0, n, WIDTH):
        lift_k(rec_k, k[1], addr(k[2]), t0 + t, q.shape[1], at, square)
        scores(q, rows, padded, q.shape[1], at, s, t)
    for i in range(count):
        r = rows[i]
        m[r], l[r], factor[i] = fold_row(s, i, span[1, i], span[2, i], cap, m[r], l[r])
    for d in range(0, acc.shape[1], WIDTH):
        lift_v(rec_v, v[1], addr(v[2]), t0, n, d, at, square)
        outputs(s, n, rows, padded, at, factor, acc, d)


@kernel()
def _visible(rows: Any, positions: Any, r0: int, start: int, n: int, window: int, group: int, span: Any) -> int:
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
    chunk: int, g: int, r0: int, group: int, local: Any, seg: Any, k: Any, v: Any, lim: Any, work: Any
) -> None:
    """Attention of a tile of rows over the keys of one chunk: m, l, acc of `work` from the empty state."""
    blocks, block_ptr, starts, lengths = seg[0], seg[1], seg[2], seg[3]
    found, ptr = local
    window, cap = lim
    acc, m, l = work[2], work[3], work[4]
    acc[:] = 0
    m[:] = NONE
    l[:] = 0
    size = k[1][BLOCK]
    span = np.empty((3, m.shape[0] + 3), np.int32)
    pk, pv = addr(k[0]), addr(v[0])
    record_k, record_v, heads = k[1][RECORD], v[1][RECORD], k[0].shape[1]
    low, high = chunk * CHUNK, (chunk + 1) * CHUNK
    for s in range(starts.shape[0]):
        rows = found[ptr[s] : ptr[s + 1]]
        end = starts[s] + lengths[s]
        if rows.shape[0] == 0 or end <= low or starts[s] >= high:
            continue
        first = max(0, (low - starts[s]) // size)
        for b in range(first, block_ptr[s + 1] - block_ptr[s]):
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
                        _fold(pk + cell * record_k, pv + cell * record_v, t, n, k, v, span, count, cap, work)


@kernel()
def new_work(rows: int, k: Any, v: Any) -> Any:
    """Scratch of `fold_chunk`: q, s, acc, m, l, factor, panel."""
    dims_k, dims_v = width_of(k[1]), width_of(v[1])
    return (
        np.empty((rows + 1, dims_k), np.float32),
        np.empty((rows + 4, UNIT), np.float32),
        np.empty((rows + 1, dims_v), np.float32),
        np.empty(rows + 1, np.float32),
        np.empty(rows + 1, np.float32),
        np.empty(rows + 4, np.float32),
        np.empty(max(dims_k, UNIT) * WIDTH + 128, np.float32),
    )
