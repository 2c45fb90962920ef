"""What an attention block does to heads one by one: biases, norms, rope, equalizing, storing.

Each step works on one row alone, in one order of operations, so a row's bits do not depend on its company.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_job import EXACT, K_DATA, N_HEADS, N_KV, N_ROWS, SIZE, V_DATA, Q, codecs
from polykv.fast.cpu.attend_views import floats, longs
from polykv.fast.cpu.entry import invoke
from polykv.fast.cpu.kv_layout import DIM, PIECE
from polykv.fast.cpu.kv_seal import seal_item
from polykv.fast.cpu.norm import rms_row
from polykv.fast.cpu.rope import rope_head
from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team import claim, finish, portion, wait

# What the block adds to the job of attention. MATS: int64 [4, MAT] of Wq, Wk, Wv, Wo (`linear_team`); EPS: float64 [1];
# VECTORS: addresses of float32 vectors, 0 = absent; see below. SEAL: entry of `seal_unit`; SEAL_...: the units to code,
# see `types.Seals`, SEAL_PER blocks of exact cells each.
(
    H,
    E,
    MATS,
    VECTORS,
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
    ROWS_AT,
    APPEND,
    ATTEND,
    SEAL,
    SEAL_BLOCKS,
    SEAL_TARGETS,
    SEAL_SINKS,
    SEAL_PER,
    N_SEALS,
) = range(32, 56)
# Norm weights of the input, of queries and keys, and after the block; biases; factors of an equalizer.
NORM, Q_NORM, K_NORM, POST_NORM, Q_BIAS, K_BIAS, V_BIAS, Q_FACTORS, K_FACTORS, V_FACTORS, OUT_FACTORS = range(11)
N_VECTORS = 11
# Rows up to which each is an item of its own.
FEW = 32


@kernel()
def _add(x: Any, bias: int) -> None:
    """x [n, D] += the vector [n D] at an address, if any."""
    if bias:
        b = floats(bias, x.shape)
        for i in range(x.shape[0]):
            for d in range(x.shape[1]):
                x[i, d] += b[i, d]


@kernel()
def _scale(x: Any, factors: int) -> None:
    """x [n, D] times the vector [n D] at an address, if any."""
    if factors:
        f = floats(factors, x.shape)
        for i in range(x.shape[0]):
            for d in range(x.shape[1]):
                x[i, d] *= f[i, d]


@kernel()
def _turn(job: Any, r: int, x: Any, bias: int, weight: int, factors: int, eps: float) -> None:
    """Bias and head norm (if any), rope and factors (if any) of the heads x [n, D] of row r, in place."""
    _add(x, bias)
    n, half = x.shape[1], job[N_ANGLES]
    cos, sin = floats(job[COS] + 4 * half * r, half), floats(job[SIN] + 4 * half * r, half)
    for i in range(x.shape[0]):
        if weight:
            rms_row(x[i], floats(weight, n), eps, x[i])
        rope_head(x[i], cos, sin, job[INTERLEAVED] != 0)
    _scale(x, factors)


@kernel()
def _append(job: Any, cells: Any, side: int, r: int, n: int, x: int) -> None:
    """Rows r .. r + n - 1, which lie at x, to their cells; side: where in the job of these cells the data of K or V are
    named."""
    places = job[SLOT_BLOCKS] + 4 * r, job[SLOT_OFFSETS] + 4 * r
    data, geom, table, pitch = cells[side], cells[side + 1], cells[side + 2], cells[side + 3]
    invoke(job[APPEND], (x, geom, table, data, pitch, job[N_KV], n, places[0], places[1]))


@kernel()
def head_phase(job: Any, desk: int, phase: int, workers: int, eps: float) -> None:
    """Biases, norms, rope and factors of q, k and v; keys and values to their cells."""
    rows, heads, n_kv = job[N_ROWS], job[N_HEADS], job[N_KV]
    # New cells are exact where a layer has exact cells.
    cells = longs(job[EXACT], SIZE) if job[EXACT] != 0 else job
    dims, given = codecs(job)[0][DIM], longs(job[VECTORS], N_VECTORS)
    q, k, v = (
        floats(job[Q], (rows, heads, dims)),
        floats(job[K], (rows, n_kv, dims)),
        floats(job[V], (rows, n_kv, dims)),
    )
    # Eight tokens of a prompt are encoded side by side; few rows are shared out.
    step = PIECE if rows > FEW else portion(rows, workers)
    items = 3 * -(-rows // step)
    i, done = claim(desk, phase), 0
    while i < items:
        first, part = i // 3 * step, i % 3
        last = min(first + step, rows)
        for r in range(first, last):
            if part == 0:
                _add(v[r], given[V_BIAS])
                _scale(v[r], given[V_FACTORS])
            elif part == 1:
                _turn(job, r, k[r], given[K_BIAS], given[K_NORM], given[K_FACTORS], eps)
            else:
                _turn(job, r, q[r], given[Q_BIAS], given[Q_NORM], given[Q_FACTORS], eps)
        if part == 0:
            _append(job, cells, V_DATA, first, last - first, addr(v[first]))
        elif part == 1:
            _append(job, cells, K_DATA, first, last - first, addr(k[first]))
        i, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, items)


@kernel()
def seal_phase(job: Any, desk: int, phase: int) -> None:
    """Code the units that are complete: K, then V."""
    exact, half = longs(job[EXACT], SIZE), job[N_SEALS] * job[N_KV]
    seals = (job[SEAL_BLOCKS], job[SEAL_TARGETS], job[SEAL_SINKS], job[SEAL_PER], job[N_KV])
    i, done = claim(desk, phase), 0
    while i < 2 * half:
        at = K_DATA if i < half else V_DATA
        source = exact[at], exact[at + 1], exact[at + 2], exact[at + 3]
        target = job[at], job[at + 1], job[at + 2], job[at + 3]
        seal_item(job[SEAL], job[APPEND], source, target, seals, i % half)
        i, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, 2 * half)


@kernel()
def restore_phase(job: Any, desk: int, phase: int, factors: int) -> None:
    """The outputs of attention, which stand where the queries were, times the factors that undo those of V."""
    rows, heads = job[N_ROWS], job[N_HEADS]
    outputs = floats(job[Q], (rows, heads, codecs(job)[0][DIM]))
    r, done = claim(desk, phase), 0
    while r < rows:
        _scale(outputs[r], factors)
        r, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, rows)
