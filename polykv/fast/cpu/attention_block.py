"""h += post_norm(Wo attend(...)): one attention block in one job of the team (twin of `polykv.ref.composites`).

The workers go through the steps together (see `team`); each step is the same row function that the operation of that
name uses, so the block equals the composition of the operations bit for bit, in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend import attend_phases, cell_jobs
from polykv.fast.cpu.attend_job import K_DATA, K_PITCH, N_ROWS, SCALARS, SIZE, V_DATA, V_PITCH, WORK, WORK_BYTES, Q
from polykv.fast.cpu.attend_views import doubles, floats, longs
from polykv.fast.cpu.attention_heads import (
    APPEND,
    ATTEND,
    COS,
    EPS,
    INTERLEAVED,
    MATS,
    N_ANGLES,
    N_SEALS,
    N_VECTORS,
    NORM,
    OUT_FACTORS,
    POST_NORM,
    ROWS_AT,
    SCRATCHES,
    SEAL,
    SEAL_BLOCKS,
    SEAL_PER,
    SEAL_SINKS,
    SEAL_TARGETS,
    SIN,
    SLOT_BLOCKS,
    SLOT_OFFSETS,
    VECTORS,
    E,
    H,
    K,
    M,
    V,
    head_phase,
    restore_phase,
    seal_phase,
)
from polykv.fast.cpu.entry import entry, invoke
from polykv.fast.cpu.kv import append_cells
from polykv.fast.cpu.kv_layout import I64
from polykv.fast.cpu.kv_memory import heads, own
from polykv.fast.cpu.kv_seal import seal_unit
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_product import SCRATCH
from polykv.fast.cpu.linear_team import (
    CODE,
    MAT,
    WIDTH,
    beginning,
    copies,
    copy_of,
    norm_phase,
    product_phase,
    quantize_phase,
)
from polykv.fast.cpu.linear_types import takes_q8
from polykv.fast.cpu.lines import aligned_floats
from polykv.fast.cpu.norm import rms_row
from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team import TEAM, claim, finish, wait
from polykv.types import F32, I32, Activations, Angles, AttentionWeights, LayerKV, Seals, Segments, Slots

# Arguments that depend on the weights alone, made once per weights: matrices, vectors, scale and softcap, epsilon; in
# front of these arrays their addresses. A memo, keyed by identity and gone with the weights: making them takes 10 us.
Prepared = tuple[I64, tuple[np.ndarray, ...]]
_PREPARED: WeakKeyDictionary[AttentionWeights, dict[Activations, Prepared]] = WeakKeyDictionary()


@kernel()
def _integers(job: Any, first: int, last: int) -> Any:
    """Whether any of some matrices reads int8 rows."""
    found = False
    for i in range(first, last):
        found |= takes_q8(longs(job[MATS], (4, MAT))[i, CODE])
    return found


@kernel()
def _post(desk: int, phase: int, h: Any, y: Any, weight: int, eps: float) -> None:
    """h += rms_norm(y)."""
    r, done = claim(desk, phase), 0
    while r < h.shape[0]:
        row = y[r]
        rms_row(row, floats(weight, row.shape[0]), eps, row)
        for e in range(h.shape[1]):
            h[r, e] += row[e]
        r, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, h.shape[0])


@kernel()
def block_phases(job_address: int, desk: int, worker: int, workers: int) -> None:
    """All phases of a block; called by address."""
    job = longs(job_address, SIZE)
    rows, width, eps = job[N_ROWS], job[E], doubles(job[EPS], 1)[0]
    mats, given, wide = job[MATS], longs(job[VECTORS], N_VECTORS), longs(job[MATS], (4, MAT))[3, WIDTH]
    scratch = job[SCRATCHES] + worker * SCRATCH
    x = copy_of(job[ROWS_AT], 6 * rows * max(width, wide), rows, worker)
    x8, wo = x + 4 * rows * width, mats + 8 * 3 * MAT
    norm_phase(desk, 0, job[H], width, given[NORM], eps, rows, x, x8 if _integers(job, 0, 3) else 0)
    after = beginning(wo, 1, rows, worker, workers)
    product_phase(desk, 1, workers, mats, 3, x, x8, rows, job[Q], 0, 0, after, scratch)
    head_phase(job, desk, 2, workers, eps)
    # Numbers of phases say nothing about their order: layers without exact cells have 0 to 8.
    if job[N_SEALS] > 0:
        seal_phase(job, desk, 12)
    invoke(job[ATTEND], (job_address, desk, 3, worker, workers))
    # The queries were overwritten by the outputs of attention.
    if given[OUT_FACTORS]:
        restore_phase(job, desk, 8, given[OUT_FACTORS])
    if _integers(job, 3, 4):
        quantize_phase(desk, 5, job[Q], 4 * wide, wide, rows, x8)
    post = given[POST_NORM]
    product_phase(desk, 6, workers, wo, 1, job[Q], x8, rows, job[M], 0 if post else job[H], after, 0, scratch)
    if post:
        _post(desk, 7, floats(job[H], (rows, width)), floats(job[M], (rows, width)), post, eps)


@kernel()
def _fill(job: Any, m: Any, k: Any, v: Any, cos: Any, sin: Any, blocks: Any, offsets: Any) -> None:
    job[M], job[K], job[V], job[E] = addr(m), addr(k), addr(v), m.shape[1]
    job[COS], job[SIN], job[N_ANGLES] = addr(cos), addr(sin), cos.shape[1]
    job[SLOT_BLOCKS], job[SLOT_OFFSETS] = addr(blocks), addr(offsets)


@kernel()
def place(job: Any, h: int, k: Any, v: Any, weights: Any, memory: int, workers: int) -> None:
    """Make a job of the step the job of one layer: addresses of h, of the arrays of K and V with the bytes from head to
    head, of the arrays of weights and of memory."""
    job[H], job[K_DATA], job[K_PITCH], job[V_DATA], job[V_PITCH] = h, k[0], k[1], v[0], v[1]
    job[MATS], job[VECTORS], job[SCALARS], job[EPS] = weights[0], weights[1], weights[2], weights[3]
    work = memory + workers * SCRATCH
    job[SCRATCHES], job[WORK], job[ROWS_AT] = memory, work, work + workers * job[WORK_BYTES]


@kernel()
def _place_exact(exact: Any, job: Any, k: Any, v: Any) -> None:
    """The same for the job over exact cells of that layer."""
    exact[K_DATA], exact[K_PITCH], exact[V_DATA], exact[V_PITCH] = addr(k), k.strides[0], addr(v), v.strides[0]
    exact[SCALARS], exact[WORK] = job[SCALARS], job[WORK]


@kernel()
def _fill_seals(job: Any, blocks: Any, targets: Any, sinks: Any) -> None:
    job[SEAL_BLOCKS], job[SEAL_TARGETS], job[SEAL_SINKS] = addr(blocks), addr(targets), addr(sinks)
    job[SEAL_PER], job[N_SEALS] = blocks.shape[1], targets.shape[0]


@kernel()
def _place(job: Any, h: Any, k: Any, v: Any, weights: Any, memory: int, workers: int) -> None:
    place(job, addr(h), (addr(k), k.strides[0]), (addr(v), v.strides[0]), weights, memory, workers)


def _vectors(w: AttentionWeights) -> list[F32 | None]:
    """The vectors of the weights in the order of VECTORS."""
    e = w.equalizer
    return [w.norm, w.q_norm, w.k_norm, w.post_norm, w.q_bias, w.k_bias, w.v_bias, e.q, e.k, e.v, e.out]


def prepared(w: AttentionWeights, activations: Activations) -> Prepared:
    """The weights as kernels take them; addresses stay valid as long as `w`."""
    found = _PREPARED.get(w)
    if found is None:
        found = _PREPARED[w] = {}
    if activations not in found:
        mats = [(code(m.type, activations), address(m.data), m.rows, m.cols) for m in (w.wq, w.wk, w.wv, w.wo)]
        vectors = [0 if v is None else address(v) for v in _vectors(w)]
        scalars = np.array([w.scale, w.softcap], np.float32)
        arrays = np.array(mats, np.int64), np.array(vectors, np.int64), scalars, np.array([w.eps])
        found[activations] = np.array([address(a) for a in arrays], np.int64), arrays
    return found[activations]


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """What the blocks of one step have in common, for layers of one shape: a job that lacks h, K and V and the weights.

    `kept` are the arrays that it has addresses of; those that are written hold nothing once a block is done. `exact` is
    the job over exact cells of layers that have some.
    """

    slots: Slots
    angles: Angles
    layouts: tuple[Any, Any]
    shape: tuple[int, int, int, int, int, int]
    job: I64
    exact: I64 | None
    address: int
    work: int
    kept: tuple[Any, ...]


# The last `Step` of segments: layers follow each other with the same ones. A memo, gone with the segments.
_STEPS: WeakKeyDictionary[Segments, Step] = WeakKeyDictionary()


def step_of(
    segments: Segments, slots: Slots, angles: Angles, kv: LayerKV, shape: tuple[int, int, int, int, int, int]
) -> Step:
    """The step, from the memo or made; shape: rows, E, query heads, K/V heads, head_dim, window."""
    k, v = own(kv.k), own(kv.v)
    found = _STEPS.get(segments)
    if (
        found is not None
        and found.slots is slots
        and found.angles is angles
        and found.shape == shape
        and found.layouts[0] is k.geom
        and found.layouts[1] is v.geom
    ):
        return found
    n, width, heads, n_kv, dims, window = shape
    lse, m = np.empty((n, heads), np.float32), aligned_floats(n, width)
    # Products of one phase lie one after the other.
    flat, split = aligned_floats(n * (heads + 2 * n_kv) * dims), (n * heads * dims, n * (heads + n_kv) * dims)
    q = flat[: split[0]].reshape(n, heads, dims)
    turns = [np.ascontiguousarray(a, np.float32) for a in (angles.cos, angles.sin)]
    cells = [np.ascontiguousarray(a, np.int32) for a in (slots.blocks, slots.offsets)]
    jobs = cell_jobs(q, q, lse, segments, kv, window)
    job, exact = jobs.each[0], jobs.each[1] if len(jobs.each) > 1 else None
    _fill(job, m, flat[split[0] : split[1]], flat[split[1] :], *turns, *cells)
    job[INTERLEAVED], job[APPEND], job[ATTEND] = angles.interleaved, entry(append_cells, 9), entry(attend_phases, 5)
    job[WORK_BYTES] = size = max(int(j[WORK_BYTES]) for j in jobs.each)
    units = _units(job, slots.seals) if exact is not None and slots.seals is not None else ()
    kept = (jobs, m, flat, turns, cells, units)
    _STEPS[segments] = made = Step(slots, angles, (k.geom, v.geom), shape, job, exact, address(job), size, kept)
    return made


def _units(job: I64, seals: Seals) -> tuple[I32, ...]:
    """Tell the job which units to code; returns the arrays that it points to."""
    arrays = tuple(np.ascontiguousarray(a, np.int32) for a in (seals.exact, seals.coded, seals.sinks))
    if len(seals.coded):
        _fill_seals(job, *arrays)
        job[SEAL] = entry(seal_unit, 7)
    return arrays


def memory_of(step: Step, wide: int, workers: int) -> int:
    """Bytes of working memory of a block whose Wo has `wide` columns."""
    n, width = step.shape[:2]
    return workers * (SCRATCH + step.work) + copies(n, workers) * 6 * n * max(width, wide)


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
    """Add the attention branch to h [R, E] in place, after writing the rows' K and V to `slots`, and codes of the units
    that are complete then."""
    if h.dtype != np.float32 or not h.flags.c_contiguous:
        raise TypeError("attention_block adds to h in place: it must be C-contiguous float32")
    n, width = h.shape
    weights, _ = prepared(w, activations)
    step = step_of(segments, slots, angles, kv, (n, width, w.n_heads, w.n_kv, w.head_dim, w.window))
    team = TEAM
    with team.lock:
        workers = team.workers
        memory = team.memory(memory_of(step, w.wo.cols, workers))
        _place(step.job, h, heads(own(kv.k)), heads(own(kv.v)), weights, memory, workers)
        if step.exact is not None and kv.exact is not None:
            _place_exact(step.exact, step.job, heads(own(kv.exact.k)), heads(own(kv.exact.v)))
        team.run(entry(block_phases, 4), step.address)
