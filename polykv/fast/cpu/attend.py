"""Attention over segments, reading codes (twin of `polykv.ref.attention`).

Two ways to share the work, same arithmetic (`attend_chunk`): few rows are cut by (chunk of keys, kv head) and merged
afterwards; many rows by (tile of rows, kv head), each going through its chunks in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_chunk import CHUNK, fold_chunk
from polykv.fast.cpu.attend_fold import fold_unit
from polykv.fast.cpu.attend_job import (
    EXACT,
    FIRST_CELL,
    FOLD,
    K_GEOM,
    K_TABLE,
    LENGTH,
    N_CHUNKS,
    N_HEADS,
    N_KV,
    N_ROWS,
    N_SEGMENTS,
    PARTIAL,
    SCALARS,
    SIZE,
    START,
    V_GEOM,
    V_TABLE,
    WINDOW,
    WORK,
    WORK_BYTES,
    codecs,
    fill,
    queries,
    scalars,
)
from polykv.fast.cpu.attend_query import prepare_queries
from polykv.fast.cpu.attend_softmax import NONE, merge_row
from polykv.fast.cpu.attend_unit import lay_out, width_of, work_bytes
from polykv.fast.cpu.attend_views import floats, ints, longs
from polykv.fast.cpu.entry import entry, invoke
from polykv.fast.cpu.fwht import rotate_back
from polykv.fast.cpu.kv import Side, side
from polykv.fast.cpu.kv_layout import CORE, DIM, I64
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.lines import aligned_floats
from polykv.fast.cpu.merge import join
from polykv.fast.cpu.team import TEAM, claim, finish, portion, wait
from polykv.results import result
from polykv.types import F32, I32, LayerKV, Segments

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
def finish_row(m: Any, l: Any, acc: Any, geom: Any, table: Any, out: Any) -> Any:
    """out [D] = acc / l in true space; returns the log-sum-exp."""
    if m == NONE and l == 0:
        out[:] = 0
        return NONE
    inverse = np.float32(1.0) / l
    for i in range(acc.shape[0]):
        acc[i] *= inverse
    if geom[CORE] > 0:
        rotate_back(acc, geom, table)
    for i in range(geom[DIM]):
        out[i] = acc[i]
    return np.float32(m + np.log(np.float64(l)))


@kernel()
def _begin(job: Any, g: int, r0: int, r1: int, work: int) -> Any:
    """Memory of a tile with its queries; returns the states (acc, m, l)."""
    q, _, _ = queries(job)
    k_geom, k_table, _, _ = codecs(job)
    scale, cap = scalars(job)
    group = job[N_HEADS] // job[N_KV]
    k, v = (job[K_GEOM], job[K_TABLE]), (job[V_GEOM], job[V_TABLE])
    prepared, acc, m, l = lay_out(work, (r1 - r0) * group, k, v, cap)
    prepare_queries(q, r0, r1, g, group, scale, k_geom, k_table, prepared)
    return acc, m, l


@kernel()
def _partials(job: Any) -> Any:
    """States float32 [chunks, n_kv, states of an item] of a step of few rows: items begin at cache lines."""
    _, _, v_geom, _ = codecs(job)
    size = states_size(job[N_ROWS], job[N_HEADS] // job[N_KV], v_geom)
    return floats(job[PARTIAL], (job[N_CHUNKS], job[N_KV], size))


@kernel()
def states_size(rows: int, group: int, v_geom: Any) -> Any:
    """Floats of the states [R, group, D' + 2] of one item, in whole cache lines."""
    return -(-rows * group * (width_of(v_geom) + 2) // 16) * 16


@kernel()
def _partial_item(job: Any, item: int, first: int, work: int, workers: int) -> None:
    """Item (chunk, kv head) of few rows: the state of every row and head."""
    chunk, g = item // job[N_KV], item % job[N_KV]
    rows, group = job[N_ROWS], job[N_HEADS] // job[N_KV]
    acc, m, l = _begin(job, g, 0, rows, work)
    states, later = _partials(job)[chunk, g], item + workers
    width = acc.shape[1] + 2
    fold_chunk(job, first + chunk, g, 0, rows, work, (first + later // job[N_KV], later % job[N_KV]))
    for r in range(rows):
        for j in range(group):
            i = r * group + j
            state = states[i * width : (i + 1) * width]
            state[0], state[1] = m[i], l[i]
            state[2:] = acc[i]


@kernel()
def _merge_item(job: Any, item: int) -> None:
    """One row of one head: its chunks in order, then true space."""
    _, out, lse = queries(job)
    _, _, v_geom, v_table = codecs(job)
    partial, width, group = _partials(job), width_of(v_geom) + 2, job[N_HEADS] // job[N_KV]
    r, h = item // job[N_HEADS], item % job[N_HEADS]
    g, at = h // group, (r * group + h % group) * width
    acc = np.zeros(width - 2, np.float32)
    m, l = NONE, np.float32(0.0)
    for c in range(partial.shape[0]):
        state = partial[c, g, at : at + width]
        m, l = merge_row(m, l, acc, state[0], state[1], state[2:])
    lse[r, h] = finish_row(m, l, acc, v_geom, v_table, out[r, h])


@kernel()
def _tile_item(job: Any, item: int, first: int, last: int, work: int) -> None:
    """Item (tile of rows, kv head) of many rows: everything from queries to true-space outputs."""
    r0, g = item // job[N_KV] * TILE, item % job[N_KV]
    r1, group = min(r0 + TILE, job[N_ROWS]), job[N_HEADS] // job[N_KV]
    states = _begin(job, g, r0, r1, work)
    _, out, lse = queries(job)
    _, _, v_geom, v_table = codecs(job)
    n = (r1 - r0) * group
    total = np.zeros((n, states[0].shape[1]), np.float32)
    m, l = np.full(n, NONE), np.zeros(n, np.float32)
    for chunk in range(first, last):
        fold_chunk(job, chunk, g, r0, r1, work, (chunk + 1, g))
        for i in range(n):
            m[i], l[i] = merge_row(m[i], l[i], total[i], states[1][i], states[2][i], states[0][i])
    for i in range(n):
        r, h = r0 + i // group, g * group + i % group
        lse[r, h] = finish_row(m[i], l[i], total[i], v_geom, v_table, out[r, h])


@kernel()
def attend_phases(job_address: int, desk: int, phase: int, worker: int, workers: int) -> None:
    """Phases of a region (see `team`): phase, phase + 1; with a second job (EXACT) also phase + 6 to phase + 8.

    Called by address. The outputs of the last job, which are the result, may overwrite the queries.
    """
    job = longs(job_address, SIZE)
    _phases(job, desk, phase, worker, workers)
    if job[EXACT] != 0:
        exact = longs(job[EXACT], SIZE)
        _phases(exact, desk, phase + 6, worker, workers)
        _join(job, exact, desk, phase + 8)


@kernel()
def _join(job: Any, exact: Any, desk: int, phase: int) -> None:
    """Merge the results of a job over codes into those of the job of the same rows over exact cells."""
    _, coded, coded_lse = queries(job)
    _, out, lse = queries(exact)
    r, done = claim(desk, phase), 0
    while r < job[N_ROWS]:
        for h in range(job[N_HEADS]):
            lse[r, h] = join(out[r, h], lse[r, h], coded[r, h], coded_lse[r, h])
        r, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, job[N_ROWS])


@kernel()
def _phases(job: Any, desk: int, phase: int, worker: int, workers: int) -> None:
    """Attention over the cells of one job, in two phases."""
    work = job[WORK] + worker * job[WORK_BYTES]
    few = job[N_ROWS] <= TILE
    first, last = chunk_range(ints(job[START], job[N_SEGMENTS]), ints(job[LENGTH], job[N_SEGMENTS]))
    items = (job[N_CHUNKS] if few else -(-job[N_ROWS] // TILE)) * job[N_KV]
    i, done = claim(desk, phase), 0
    while i < items:
        if few:
            _partial_item(job, i, first, work, workers)
        else:
            _tile_item(job, i, first, last, work)
        i, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, items)
    if few:
        items = job[N_ROWS] * job[N_HEADS]
        each = portion(items, workers)
        portions = -(-items // each)
        i, done = claim(desk, phase + 1), 0
        while i < portions:
            for item in range(i * each, min((i + 1) * each, items)):
                _merge_item(job, item)
            i, done = claim(desk, phase + 1), done + 1
        finish(desk, phase + 1, done)
        wait(desk, phase + 1, portions)


@kernel()
def _alone(what: int, desk: int, worker: int, workers: int) -> None:
    """what: addresses of `attend_phases`, so that it is compiled once (`entry`), and of a job."""
    both = longs(what, 2)
    invoke(both[0], (both[1], desk, 0, worker, workers))


def segment_arrays(s: Segments) -> tuple[I32, ...]:
    """The fields of Segments as kernels take them."""
    fields = (s.blocks, s.block_ptr, s.start, s.length, s.rows, s.row_ptr, s.positions)
    return tuple(np.ascontiguousarray(a, np.int32) for a in fields)


def partial_states(segments: Segments, heads: int, v: Side) -> F32:
    """Room for the states of a step of few rows, see `_partials`; empty for many rows."""
    rows, n_kv = segments.positions.shape[0], v[0].shape[0]
    first, last = chunk_range(segments.start, segments.length)
    return aligned_floats(last - first if rows <= TILE else 0, n_kv, states_size(rows, heads // n_kv, v[1]))


def attention_memory(rows: int, heads: int, k: Side, v: Side) -> int:
    """Bytes of working memory of one worker, a multiple of a cache line."""
    return int(work_bytes(min(rows, TILE) * heads // k[0].shape[0], k[1], v[1]))


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
    q = np.ascontiguousarray(q, np.float32)
    out = result(out, q.shape)
    lse = np.empty(q.shape[:2], np.float32)
    scalars = np.array([scale, softcap], np.float32)
    jobs = cell_jobs(q, out, lse, segments, kv, window)
    team = TEAM
    with team.lock:
        memory = team.memory(team.workers * max(job[WORK_BYTES] for job in jobs.each))
        for job in jobs.each:
            job[WORK], job[SCALARS] = memory, address(scalars)
        what = np.array((entry(attend_phases, 5), address(jobs.each[0])), np.int64)
        team.run(entry(_alone, 4), address(what))
    return out, lse


@dataclass(frozen=True, eq=False, slots=True)
class CellJobs:
    """Jobs of attention over coded and, if a layer has some, over exact cells; `kept` are arrays that they point to.

    WORK and SCALARS are the caller's to set.
    """

    each: tuple[I64, ...]
    kept: tuple[Any, ...]


def cell_jobs(q: F32, out: F32, lse: F32, segments: Segments, kv: LayerKV, window: int) -> CellJobs:
    """The first job runs all of them; results go to out [R, H, D], which may be q, and lse [R, H]."""
    if segments.exact is None or kv.exact is None:
        job, kept = _cell_job(q, out, lse, segments, kv, window)
        return CellJobs((job,), kept)
    coded, coded_lse = np.empty(q.shape, np.float32), np.empty(q.shape[:2], np.float32)
    job, kept = _cell_job(q, coded, coded_lse, segments, kv, window)
    exact, more = _cell_job(q, out, lse, segments.exact, kv.exact, window)
    job[EXACT] = address(exact)
    return CellJobs((job, exact), (kept, more))


def _cell_job(q: F32, out: F32, lse: F32, segments: Segments, kv: LayerKV, window: int) -> tuple[I64, tuple[Any, ...]]:
    k, v = side(kv.k), side(kv.v)
    job, seg, partial = np.zeros(SIZE, np.int64), segment_arrays(segments), partial_states(segments, q.shape[1], v)
    # WORK_BYTES and SCALARS of the caller's: lse stands in for the address that is set later.
    fill(job, q, out, lse, partial, seg, k, v, lse)
    job[WINDOW], job[FOLD], job[FIRST_CELL] = window, entry(fold_unit, 4), segments.first
    job[WORK_BYTES] = attention_memory(q.shape[0], q.shape[1], k, v)
    return job, (q, out, lse, seg, partial)
