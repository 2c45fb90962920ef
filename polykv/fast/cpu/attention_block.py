"""h += post_norm(Wo attend(...)): one attention block in one parallel region (twin of `polykv.ref.composites`).

The workers go through the steps together (see `team`); each step is the same row function that the operation of that
name uses, so the block equals the composition of the operations bit for bit, in any batch.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba import prange

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend import attend_phases, partial_states, segment_arrays, side
from polykv.fast.cpu.kv import append_row
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_product import SCRATCH
from polykv.fast.cpu.linear_team import product_phase
from polykv.fast.cpu.linear_types import INTEGERS, slot
from polykv.fast.cpu.norm import rms_row
from polykv.fast.cpu.q8 import quantize_row
from polykv.fast.cpu.rope import rope_head
from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team import claim, enter, finish_and_claim, wait
from polykv.types import F32, Activations, Angles, AttentionWeights, LayerKV, Segments, Slots

Q, K, V, O = range(4)
CODE, ADDRESS, ROWS, COLS = range(4)
# Arguments of a block that depend on its weights alone, made once per weights.
Prepared = tuple[np.ndarray, tuple[F32, F32, F32, F32], np.float32, tuple[int, np.float32], float]
_PREPARED: WeakKeyDictionary[AttentionWeights, dict[Activations, Prepared]] = WeakKeyDictionary()


@kernel()
def _normed(desk: int, phase: int, x: Any, weight: Any, eps: float, quantize: bool, out: Any, q8: int) -> None:
    """rms_norm of rows to `out` and, on demand, their int8 form; without a weight the rows are only rounded."""
    cols = x.shape[1]
    r = claim(desk, phase)
    while r < x.shape[0]:
        row = out[r]
        if weight.shape[0] > 0:
            rms_row(x[r], weight, eps, row)
        if quantize:
            quantize_row(addr(row), cols, q8 + 2 * cols * r)
        r = finish_and_claim(desk, phase)
    wait(desk, phase, x.shape[0])


@kernel()
def _turn(x: Any, weight: Any, eps: float, angles: Any, r: int) -> None:
    """Head norm (if any) and rope of the heads x [n, D] of row r, in place."""
    for i in range(x.shape[0]):
        if weight.shape[0] > 0:
            rms_row(x[i], weight, eps, x[i])
        rope_head(x[i], angles[0][r], angles[1][r], angles[2])


@kernel()
def _heads(
    desk: int, phase: int, q: Any, k: Any, v: Any, norms: Any, eps: float, angles: Any, slots: Any, sides: Any
) -> None:
    """Norm and rope of q and k; keys and values to their cells."""
    rows = q.shape[0]
    i = claim(desk, phase)
    while i < 3 * rows:
        r, part = i // 3, i % 3
        if part == 0:
            append_row(v[r], sides[1][1], sides[1][2], sides[1][0], slots[0][r], slots[1][r])
        elif part == 1:
            _turn(k[r], norms[2], eps, angles, r)
            append_row(k[r], sides[0][1], sides[0][2], sides[0][0], slots[0][r], slots[1][r])
        else:
            _turn(q[r], norms[1], eps, angles, r)
        i = finish_and_claim(desk, phase)
    wait(desk, phase, 3 * rows)


@kernel()
def _residual(desk: int, phase: int, h: Any, y: Any, norms: Any, eps: float) -> None:
    """h += post_norm(y)."""
    r = claim(desk, phase)
    while r < h.shape[0]:
        row = y[r]
        if norms[3].shape[0] > 0:
            rms_row(row, norms[3], eps, row)
        for e in range(h.shape[1]):
            h[r, e] += row[e]
        r = finish_and_claim(desk, phase)
    wait(desk, phase, h.shape[0])


@kernel()
def _multiply(desk: int, phase: int, workers: int, w: Any, x: Any, q8: int, y: Any, scratch: int) -> None:
    """y [R, rows] = x W^T for one matrix, from float32 or int8 rows as its type wants."""
    rows, cols, n = w[ROWS], w[COLS], x.shape[0]
    at, pitch = (q8, 2 * cols) if slot(w[CODE], INTEGERS) else (addr(x), 4 * cols)
    product_phase(desk, phase, workers, w[CODE], w[ADDRESS], rows, cols, at, pitch, n, addr(y), 4 * rows, scratch)


@kernel()
def _block(
    desk: int,
    workers: int,
    scratch: int,
    h: Any,
    mats: Any,
    norms: Any,
    scale: Any,
    lim: Any,
    eps: float,
    angles: Any,
    slots: Any,
    seg: Any,
    sides: Any,
    partial: Any,
    buffers: Any,
    q8: int,
) -> None:
    m, q, k, v, lse = buffers
    rows, wide = h.shape[0], q.shape[1] * q.shape[2]
    flat = q.reshape(rows, wide)
    integers = slot(mats[Q, CODE], INTEGERS) + slot(mats[K, CODE], INTEGERS) + slot(mats[V, CODE], INTEGERS) > 0
    _normed(desk, 0, h, norms[0], eps, integers, m, q8)
    _multiply(desk, 1, workers, mats[Q], m, q8, q, scratch)
    _multiply(desk, 2, workers, mats[K], m, q8, k, scratch)
    _multiply(desk, 3, workers, mats[V], m, q8, v, scratch)
    _heads(desk, 4, q, k, v, norms, eps, angles, slots, sides)
    attend_phases(desk, 5, q, seg, sides[0], sides[1], scale, lim, partial, q, lse)
    # The queries were overwritten by the outputs of attention, and the normed input by the block's output.
    _normed(desk, 7, flat, norms[0][:0], eps, slot(mats[O, CODE], INTEGERS) > 0, flat, q8)
    _multiply(desk, 8, workers, mats[O], flat, q8, m, scratch)
    _residual(desk, 9, h, m, norms, eps)


@kernel(parallel=True)
def _region(
    workers: int,
    desk: int,
    memory: int,
    h: Any,
    mats: Any,
    norms: Any,
    scale: Any,
    lim: Any,
    eps: float,
    angles: Any,
    slots: Any,
    seg: Any,
    k: Any,
    v: Any,
    partial: Any,
    buffers: Any,
) -> None:
    q8 = memory + workers * SCRATCH
    for i in prange(workers):
        # Only flat tuples enter a parallel loop.
        sides, scratch = (k, v), memory + i * SCRATCH
        _block(desk, workers, scratch, h, mats, norms, scale, lim, eps, angles, slots, seg, sides, partial, buffers, q8)


def _prepared(w: AttentionWeights, activations: Activations) -> Prepared:
    """The weights as kernels take them; they stay valid as long as `w`, which holds the arrays."""
    found = _PREPARED.setdefault(w, {})
    if activations not in found:
        absent = np.empty(0, np.float32)
        mats = [(code(m.type, activations), address(m.data), m.rows, m.cols) for m in (w.wq, w.wk, w.wv, w.wo)]
        q_norm, k_norm, post = (absent if n is None else n for n in (w.q_norm, w.k_norm, w.post_norm))
        norms, limits = (w.norm, q_norm, k_norm, post), (w.window, np.float32(w.softcap))
        found[activations] = np.array(mats, np.int64), norms, np.float32(w.scale), limits, w.eps
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
    n, width = h.shape
    sides = side(kv.k), side(kv.v)
    partial = partial_states(segments, w.n_heads, sides[1])
    q = np.empty((n, w.n_heads, w.head_dim), np.float32)
    k, v = np.empty((2, n, w.n_kv, w.head_dim), np.float32)
    buffers = np.empty((n, width), np.float32), q, k, v, np.empty((n, w.n_heads), np.float32)
    with enter() as team:
        memory = team.memory(team.workers * SCRATCH + 2 * n * max(width, w.wo.cols))
        turn, cells = (angles.cos, angles.sin, angles.interleaved), (slots.blocks, slots.offsets)
        seg = segment_arrays(segments)
        args = (turn, cells, seg, *sides, partial, buffers)
        _region(team.workers, team.desk, memory, h, *_prepared(w, activations), *args)
