"""Attention over segments, reading codes (twin of `polykv.ref.attention`).

Two ways to share the work, same arithmetic (`attend_chunk`): few rows are cut by (chunk of keys, kv head) and merged
afterwards; many rows by (tile of rows, kv head), each going through its chunks in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_chunk import CHUNK, fold_chunk, new_work, prepare_queries, rows_of_tile, width_of
from polykv.fast.cpu.attend_softmax import NONE, merge_row
from polykv.fast.cpu.encode_row import LLOYD_
from polykv.fast.cpu.fwht import rotate
from polykv.fast.cpu.kv import own
from polykv.fast.cpu.kv_layout import DIM, FAMILY, GROUP, I64, SIGNS1, SIGNS2, STORED
from polykv.fast.cpu.team import claim, enter, finish_and_claim, wait
from polykv.types import F32, I32, U8, KVArena, LayerKV, Segments

# Rows of a tile. More rows share each lifted panel, fewer keep their states in the L2 cache.
TILE = 32


@kernel()
def chunk_range(start: Any, length: Any) -> Any:
    """First chunk with keys, and one past the last, of segments."""
    first, last = 1 << 60, 0
    for s in range(start.shape[0]):
        if length[s] > 0:
            first = min(first, start[s] // CHUNK)
            last = max(last, (start[s] + length[s] - 1) // CHUNK + 1)
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
    first, last = chunk_range(seg[2], seg[3])
    for chunk in range(first, last):
        fold_chunk(chunk, g, r0, group, local, seg, k, v, lim, work)
        for i in range(n):
            m[i], l[i] = merge_row(m[i], l[i], total[i], work[3][i], work[4][i], work[2][i])
    for i in range(n):
        r, h = r0 + i // group, g * group + i % group
        lse[r, h] = finish_row(m[i], l[i], total[i], v, out[r, h])


@kernel()
def attend_phases(
    desk: int, phase: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, partial: Any, out: Any, lse: Any
) -> None:
    """Two phases of a region (see `team`): attention of q to `out`, which may be `q`. partial: see `partial_states`."""
    heads, heads_kv = q.shape[1], k[0].shape[1]
    few = q.shape[0] <= TILE
    first, _ = chunk_range(seg[2], seg[3])
    items = (partial.shape[0] if few else -(-q.shape[0] // TILE)) * heads_kv
    i = claim(desk, phase)
    while i < items:
        if few:
            partial_item(i, q, seg, k, v, scale, lim, first, partial)
        else:
            tile_item(i, q, seg, k, v, scale, lim, out, lse)
        i = finish_and_claim(desk, phase)
    wait(desk, phase, items)
    if few:
        items = q.shape[0] * heads
        i = claim(desk, phase + 1)
        while i < items:
            merge_item(i // heads, i % heads, partial, v, out, lse)
            i = finish_and_claim(desk, phase + 1)
        wait(desk, phase + 1, items)


@kernel(parallel=True)
def _region(
    workers: int, desk: int, q: Any, seg: Any, k: Any, v: Any, scale: Any, lim: Any, partial: Any, out: Any, lse: Any
) -> None:
    for _ in prange(workers):
        attend_phases(desk, 0, q, seg, k, v, scale, lim, partial, out, lse)


def segment_arrays(s: Segments) -> tuple[I32, ...]:
    """The fields of Segments as kernels take them."""
    return (s.blocks, s.block_ptr, s.start, s.length, s.rows, s.row_ptr, s.positions)


def side(arena: KVArena) -> tuple[U8, I64, F32]:
    """One side of a layer as kernels take it."""
    a = own(arena)
    return a.fields["data"], a.geom, a.table


def partial_states(segments: Segments, heads: int, v: tuple[U8, I64, F32]) -> F32:
    """Room for the states of a step of few rows, float32 [chunks, R, H, D' + 2]; empty for many rows."""
    rows = segments.positions.shape[0]
    first, last = chunk_range(segments.start, segments.length)
    return np.empty((last - first if rows <= TILE else 0, rows, heads, width_of(v[1]) + 2), np.float32)


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
    out = np.empty(q.shape, np.float32) if out is None else out
    lse = np.empty(q.shape[:2], np.float32)
    k, v, seg = side(kv.k), side(kv.v), segment_arrays(segments)
    partial = partial_states(segments, q.shape[1], v)
    with enter() as team:
        args = (np.ascontiguousarray(q), seg, k, v, np.float32(scale), (window, np.float32(softcap)), partial, out, lse)
        _region(team.workers, team.desk, *args)
    return out, lse
