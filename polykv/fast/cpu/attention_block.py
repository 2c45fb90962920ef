"""h += post_norm(Wo attend(...)): one attention block in one job of the team (twin of `polykv.ref.composites`).

The workers go through the steps together (see `team`); each step is the same row function that the operation of that
name uses, so the block equals the composition of the operations bit for bit, in any batch.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend import attend_phases, attention_memory, partial_states, segment_arrays
from polykv.fast.cpu.attend_fold import fold_unit
from polykv.fast.cpu.attend_job import (
    FOLD,
    K_DATA,
    N_HEADS,
    N_KV,
    N_ROWS,
    SIZE,
    V_DATA,
    WINDOW,
    WORK,
    WORK_BYTES,
    Q,
    codecs,
    fill,
)
from polykv.fast.cpu.attend_views import doubles, floats, ints, longs
from polykv.fast.cpu.entry import entry, invoke
from polykv.fast.cpu.kv import append_cell, side
from polykv.fast.cpu.kv_layout import DIM, RECORD
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_product import SCRATCH
from polykv.fast.cpu.linear_team import product_phase
from polykv.fast.cpu.linear_types import INTEGERS, slot
from polykv.fast.cpu.norm import rms_row
from polykv.fast.cpu.q8 import quantize_row
from polykv.fast.cpu.rope import rope_head
from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team import TEAM, claim, finish_and_claim, wait
from polykv.types import F32, Activations, Angles, AttentionWeights, LayerKV, Segments, Slots

# What the block adds to the job of attention. MATS: int64 [4, 4] of Wq, Wk, Wv, Wo; EPS: float64 [1]; NORMS: four
# addresses (input, q, k, post), 0 = absent.
(
    H,
    E,
    MATS,
    NORMS,
    COS,
    SIN,
    N_ANGLES,
    INTERLEAVED,
    SLOT_BLOCKS,
    SLOT_OFFSETS,
    M,
    K,
    V,
    EPS,
    SCRATCHES,
    Q8,
    APPEND,
    ATTEND,
) = range(32, 50)
CODE, ADDRESS, ROWS, COLS = range(4)
# Arguments that depend on the weights alone, made once per weights: matrices, norms, scale and softcap, epsilon. A
# memo, keyed by identity and gone with the weights: making them anew takes 10 us, once per layer and step.
Prepared = tuple[np.ndarray, np.ndarray, F32, np.ndarray]
_PREPARED: WeakKeyDictionary[AttentionWeights, dict[Activations, Prepared]] = WeakKeyDictionary()


@kernel()
def _normed(desk: int, phase: int, x: Any, weight: int, eps: float, quantize: bool, out: Any, q8: int) -> None:
    """rms_norm of rows to `out` and, on demand, their int8 form; without a weight the rows are only rounded."""
    cols = x.shape[1]
    r = claim(desk, phase)
    while r < x.shape[0]:
        if weight:
            rms_row(x[r], floats(weight, cols), eps, out[r])
        if quantize:
            quantize_row(addr(out) + 4 * cols * r, cols, q8 + 2 * cols * r)
        r = finish_and_claim(desk, phase)
    wait(desk, phase, x.shape[0])


@kernel()
def _multiply(job: Any, matrix: int, desk: int, phase: int, x: int, y: int, worker: int, workers: int) -> None:
    """y [R, rows] = x W^T for one matrix, from float32 or int8 rows as its type wants."""
    w, n = longs(job[MATS], (4, 4))[matrix], job[N_ROWS]
    rows, cols, scratch = w[ROWS], w[COLS], job[SCRATCHES] + worker * SCRATCH
    at, pitch = (job[Q8], 2 * cols) if slot(w[CODE], INTEGERS) else (x, 4 * cols)
    product_phase(desk, phase, workers, w[CODE], w[ADDRESS], rows, cols, at, pitch, n, y, 4 * rows, scratch)


@kernel()
def _turn(job: Any, r: int, x: Any, weight: int, eps: float) -> None:
    """Head norm (if any) and rope of the heads x [n, D] of row r, in place."""
    n, half = x.shape[1], job[N_ANGLES]
    cos, sin = floats(job[COS] + 4 * half * r, half), floats(job[SIN] + 4 * half * r, half)
    for i in range(x.shape[0]):
        if weight:
            rms_row(x[i], floats(weight, n), eps, x[i])
        rope_head(x[i], cos, sin, job[INTERLEAVED] != 0)


@kernel()
def _append(job: Any, data: int, geom: Any, geom_at: int, table_at: int, r: int, x: int) -> None:
    block, offset = ints(job[SLOT_BLOCKS], job[N_ROWS])[r], ints(job[SLOT_OFFSETS], job[N_ROWS])[r]
    record = data + np.int64(block) * job[N_KV] * geom[RECORD]
    invoke(job[APPEND], (x, geom_at, table_at, record, job[N_KV], np.int64(offset)))


@kernel()
def _heads(job: Any, desk: int, phase: int, eps: float) -> None:
    """Norm and rope of q and k; keys and values to their cells."""
    rows, heads, n_kv = job[N_ROWS], job[N_HEADS], job[N_KV]
    k_geom, _, v_geom, _ = codecs(job)
    dims, norms = k_geom[DIM], longs(job[NORMS], 4)
    q, k, v = (
        floats(job[Q], (rows, heads, dims)),
        floats(job[K], (rows, n_kv, dims)),
        floats(job[V], (rows, n_kv, dims)),
    )
    i = claim(desk, phase)
    while i < 3 * rows:
        r, part = i // 3, i % 3
        if part == 0:
            _append(job, job[V_DATA], v_geom, job[V_DATA + 1], job[V_DATA + 2], r, addr(v[r]))
        elif part == 1:
            _turn(job, r, k[r], norms[2], eps)
            _append(job, job[K_DATA], k_geom, job[K_DATA + 1], job[K_DATA + 2], r, addr(k[r]))
        else:
            _turn(job, r, q[r], norms[1], eps)
        i = finish_and_claim(desk, phase)
    wait(desk, phase, 3 * rows)


@kernel()
def _residual(desk: int, phase: int, h: Any, y: Any, weight: int, eps: float) -> None:
    """h += post_norm(y)."""
    r = claim(desk, phase)
    while r < h.shape[0]:
        row = y[r]
        if weight:
            rms_row(row, floats(weight, row.shape[0]), eps, row)
        for e in range(h.shape[1]):
            h[r, e] += row[e]
        r = finish_and_claim(desk, phase)
    wait(desk, phase, h.shape[0])


@kernel()
def block_phases(job_address: int, desk: int, worker: int, workers: int) -> None:
    """All phases of a block; called by address."""
    job = longs(job_address, SIZE)
    rows, width, eps = job[N_ROWS], job[E], doubles(job[EPS], 1)[0]
    mats, norms = longs(job[MATS], (4, 4)), longs(job[NORMS], 4)
    h, m = floats(job[H], (rows, width)), floats(job[M], (rows, width))
    q = floats(job[Q], (rows, mats[3, COLS]))
    integers = slot(mats[0, CODE], INTEGERS) + slot(mats[1, CODE], INTEGERS) + slot(mats[2, CODE], INTEGERS)
    _normed(desk, 0, h, norms[0], eps, integers > 0, m, job[Q8])
    _multiply(job, 0, desk, 1, job[M], job[Q], worker, workers)
    _multiply(job, 1, desk, 2, job[M], job[K], worker, workers)
    _multiply(job, 2, desk, 3, job[M], job[V], worker, workers)
    _heads(job, desk, 4, eps)
    invoke(job[ATTEND], (job_address, desk, 5, worker, workers))
    # The queries were overwritten by the outputs of attention, and the normed input by the product.
    _normed(desk, 7, q, 0, eps, slot(mats[3, CODE], INTEGERS) > 0, q, job[Q8])
    _multiply(job, 3, desk, 8, job[Q], job[M], worker, workers)
    _residual(desk, 9, h, m, norms[3], eps)


@kernel()
def _fill(job: Any, h: Any, m: Any, k: Any, v: Any, w: Any, cos: Any, sin: Any, blocks: Any, offsets: Any) -> None:
    job[H], job[M], job[K], job[V], job[E] = addr(h), addr(m), addr(k), addr(v), h.shape[1]
    job[MATS], job[NORMS], job[EPS] = addr(w[0]), addr(w[1]), addr(w[3])
    job[COS], job[SIN], job[N_ANGLES] = addr(cos), addr(sin), cos.shape[1]
    job[SLOT_BLOCKS], job[SLOT_OFFSETS] = addr(blocks), addr(offsets)


def _prepared(w: AttentionWeights, activations: Activations) -> Prepared:
    """The weights as kernels take them; addresses stay valid as long as `w`, which holds the arrays."""
    found = _PREPARED.setdefault(w, {})
    if activations not in found:
        mats = [(code(m.type, activations), address(m.data), m.rows, m.cols) for m in (w.wq, w.wk, w.wv, w.wo)]
        norms = [0 if n is None else address(n) for n in (w.norm, w.q_norm, w.k_norm, w.post_norm)]
        scalars = np.array([w.scale, w.softcap], np.float32)
        found[activations] = np.array(mats, np.int64), np.array(norms, np.int64), scalars, np.array([w.eps])
    return found[activations]


def attention_block(
    h: F32,
    w: AttentionWeights,
    kv: LayerKV,
    angles: Angles,
    segments: Segments,
    slots: Slots,
    *,
    activations: Activations,
) -> None:
    """Add the attention branch to h [R, E] in place, after writing the rows' K and V to `slots`."""
    if h.dtype != np.float32 or not h.flags.c_contiguous:
        raise TypeError("attention_block adds to h in place: it must be C-contiguous float32")
    (n, width), heads, dims = h.shape, w.n_heads, w.head_dim
    ks, vs, prepared = side(kv.k), side(kv.v), _prepared(w, activations)
    partial, lse, m = partial_states(segments, heads, vs), np.empty((n, heads), np.float32), np.empty_like(h)
    q, k, v = (np.empty((n, x, dims), np.float32) for x in (heads, w.n_kv, w.n_kv))
    job = np.empty(SIZE, np.int64)
    blocks, offsets = (np.ascontiguousarray(a, np.int32) for a in (slots.blocks, slots.offsets))
    cos, sin = (np.ascontiguousarray(a, np.float32) for a in (angles.cos, angles.sin))
    # The kernel sees addresses only: these names keep the arrays alive until it is done.
    segs = segment_arrays(segments)
    fill(job, q, q, lse, partial, segs, ks, vs, prepared[2])
    _fill(job, h, m, k, v, prepared, cos, sin, blocks, offsets)
    size = attention_memory(n, heads, ks, vs)
    team = TEAM
    with team.lock:
        shared = team.workers * SCRATCH
        memory = team.memory(shared + team.workers * size + 2 * n * max(width, w.wo.cols))
        job[SCRATCHES], job[WORK], job[Q8] = memory, memory + shared, memory + shared + team.workers * size
        job[WORK_BYTES], job[WINDOW], job[INTERLEAVED] = size, w.window, angles.interleaved
        job[FOLD], job[APPEND], job[ATTEND] = entry(fold_unit, 4), entry(append_cell, 6), entry(attend_phases, 5)
        team.run(entry(block_phases, 4), address(job))
