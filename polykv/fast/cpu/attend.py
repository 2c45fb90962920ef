"""Attention over segments, reading codes (twin of `polykv.ref.attention`).

Two ways to share the work, same arithmetic (`attend_chunk`): few rows are cut by (chunk of keys, kv head) and merged
afterwards; many rows by (tile of rows, kv head), each going through its chunks in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_chunk import CHUNK, fold_chunk, new_work, prepare_queries, rows_of_tile
from polykv.fast.cpu.attend_softmax import NONE, merge_row
from polykv.fast.cpu.encode_row import LLOYD_
from polykv.fast.cpu.fwht import rotate
from polykv.fast.cpu.kv import own
from polykv.fast.cpu.kv_layout import DIM, FAMILY, GROUP, SIGNS1, SIGNS2, STORED
from polykv.fast.cpu.team import claim, enter, finish_and_claim, wait
from polykv.types import F32, LayerKV, Segments

# Rows of a tile. More rows share each lifted panel, fewer keep their states in the L2 cache.
TILE = 32


@kernel()
def chunk_range(seg: Any) -> Any:
    """First chunk with keys, and one past the last."""
    first, last = 1 << 60, 0
    for s in range(seg[2].shape[0]):
        if seg[3][s] > 0:
            first = min(first, seg[2][s] // CHUNK)
            last = max(last, (seg[2][s] + seg[3][s] - 1) // CHUNK + 1)
    return min(first, last), last


@kernel()
def finish_row(m: np.float32, l: np.float32, acc: Any, v: Any, out: Any) -> np.float32:
    """out [D] = acc / l in true space; returns the log-sum-exp."""
    geom, table = v[1], v[2]
    if m == NONE:
        out[:] = 0
        return NONE
    inverse = np.float32(1.0) / l
    for i in range(acc.shape[0]):
        acc[i] *= inverse
    if geom[FAMILY] == LLOYD_:
        rotate(acc, 0, geom[STORED], geom[GROUP], table, SIGNS2, SIGNS1)
    for i in range(geom[DIM]):
        out[i] = acc[i]
    return np.float32(m + np.log(np.float64(l)))


@kernel()
def partial_item(item: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, first: int, partial: Any) -> None:
    """Item (chunk, kv head) of few rows: state of every row and head to partial [chunks, R, H, D' + 2]."""
    heads_kv = k[0].shape[1]
    n_rows, group = q.shape[0], q.shape[1] // heads_kv
    chunk, g = item // heads_kv, item % heads_kv
    work = new_work(n_rows * group, k, v)
    prepare_queries(q, 0, n_rows, g, group, scale, k, work[0])
    fold_chunk(first + chunk, g, 0, group, rows_of_tile(seg, 0, n_rows), seg, k, v, lim, work)
    acc, m, l = work[2], work[3], work[4]
    for r in range(n_rows):
        for j in range(group):
            state = partial[chunk, r, g * group + j]
            state[0] = m[r * group + j]
            state[1] = l[r * group + j]
            state[2:] = acc[r * group + j]


@kernel()
def merge_item(r: int, h: int, partial: Any, v: Any, out: Any, lse: Any) -> None:
    """Row r of head h: its chunks in order, then true space."""
    acc = np.zeros(partial.shape[3] - 2, np.float32)
    m, l = NONE, np.float32(0.0)
    for c in range(partial.shape[0]):
        state = partial[c, r, h]
        m, l = merge_row(m, l, acc, state[0], state[1], state[2:])
    lse[r, h] = finish_row(m, l, acc, v, out[r, h])


@kernel()
def tile_item(item: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, out: Any, lse: Any) -> None:
    """Item (tile of rows, kv head) of many rows: everything from queries to true-space outputs."""
    heads_kv = k[0].shape[1]
    group = q.shape[1] // heads_kv
    r0, g = item // heads_kv * TILE, item % heads_kv
    r1 = min(r0 + TILE, q.shape[0])
    n = (r1 - r0) * group
    work = new_work(n, k, v)
    prepare_queries(q, r0, r1, g, group, scale, k, work[0])
    local = rows_of_tile(seg, r0, r1)
    total = np.zeros((n, work[2].shape[1]), np.float32)
    m, l = np.full(n, NONE), np.zeros(n, np.float32)
    first, last = chunk_range(seg)
    for chunk in range(first, last):
        fold_chunk(chunk, g, r0, group, local, seg, k, v, lim, work)
        for i in range(n):
            m[i], l[i] = merge_row(m[i], l[i], total[i], work[3][i], work[4][i], work[2][i])
    for i in range(n):
        r, h = r0 + i // group, g * group + i % group
        lse[r, h] = finish_row(m[i], l[i], total[i], v, out[r, h])


@kernel()
def _few(desk: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, partial: Any, out: Any, lse: Any) -> None:
    first, _ = chunk_range(seg)
    items = partial.shape[0] * k[0].shape[1]
    i = claim(desk, 0)
    while i < items:
        partial_item(i, q, seg, k, v, scale, lim, first, partial)
        i = finish_and_claim(desk, 0)
    wait(desk, 0, items)
    heads = q.shape[1]
    i = claim(desk, 1)
    while i < q.shape[0]:
        for h in range(heads):
            merge_item(i, h, partial, v, out, lse)
        i = finish_and_claim(desk, 1)


@kernel()
def _many(desk: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, out: Any, lse: Any) -> None:
    items = -(-q.shape[0] // TILE) * k[0].shape[1]
    i = claim(desk, 0)
    while i < items:
        tile_item(i, q, seg, k, v, scale, lim, out, lse)
        i = finish_and_claim(desk, 0)


@kernel(parallel=True)
def _region_few(
    workers: int, desk: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, partial: Any, out: Any, lse: Any
) -> None:
    for _ in prange(workers):
        _few(desk, q, seg, k, v, scale, lim, partial, out, lse)


@kernel(parallel=True)
def _region_many(
    workers: int, desk: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, out: Any, lse: Any
) -> None:
    for _ in prange(workers):
        _many(desk, q, seg, k, v, scale, lim, out, lse)


def few_rows(rows: int) -> bool:
    """Whether a step of this many rows is cut by chunks of keys (else by tiles of rows)."""
    return rows <= TILE


def segment_arrays(s: Segments) -> tuple[np.ndarray, ...]:
    """The fields of Segments as kernels take them."""
    return (s.blocks, s.block_ptr, s.start, s.length, s.rows, s.row_ptr, s.positions)


def attend(
    q: F32,
    segments: Segments,
    kv: LayerKV,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    out: F32 | None = None,
) -> tuple[F32, F32]:
    """Softmax attention of q [R, H, D] over the segments' codes: out [R, H, D] in true space, lse [R, H]."""
    n_rows, heads, _ = q.shape
    out = np.empty(q.shape, np.float32) if out is None else out
    lse = np.empty((n_rows, heads), np.float32)
    ka, va = own(kv.k), own(kv.v)
    k, v = (ka.fields["data"], ka.geom, ka.table), (va.fields["data"], va.geom, va.table)
    seg = segment_arrays(segments)
    q, factor, lim = np.ascontiguousarray(q), np.float32(scale), (window, np.float32(softcap))
    if not few_rows(n_rows):
        with enter() as team:
            _region_many(team.workers, team.desk, q, seg, k, v, factor, lim, out, lse)
        return out, lse
    first, last = chunk_range(seg)
    dims = int(va.geom[STORED]) if va.codec.rotated else va.head_dim
    partial = np.empty((last - first, n_rows, heads, dims + 2), np.float32)
    with enter() as team:
        _region_few(team.workers, team.desk, q, seg, k, v, factor, lim, partial, out, lse)
    return out, lse
