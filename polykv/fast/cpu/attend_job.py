"""The arguments of attention as one array of integers, so that kernels can be called by address (see `entry`)."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats, longs
from polykv.fast.cpu.kv_layout import GEOM, TABLE
from polykv.fast.cpu.simd import addr, get_f32

# Addresses and counts of a job. SCALARS points to float32 (scale, softcap). FIRST_CELL: cells at positions before it
# are not seen. PITCH: bytes from head to head. EXACT: a job of the same rows over their exact cells, or 0.
(
    Q,
    OUT,
    LSE,
    PARTIAL,
    BLOCKS,
    BLOCK_PTR,
    START,
    LENGTH,
    ROWS,
    ROW_PTR,
    POSITIONS,
    K_DATA,
    K_GEOM,
    K_TABLE,
    K_PITCH,
    V_DATA,
    V_GEOM,
    V_TABLE,
    V_PITCH,
    SCALARS,
    N_ROWS,
    N_HEADS,
    N_DIMS,
    N_KV,
    N_CHUNKS,
    N_SEGMENTS,
    WINDOW,
    FOLD,
    WORK,
    WORK_BYTES,
    FIRST_CELL,
    EXACT,
) = range(32)
SIZE = 64


@kernel()
def fill(job: Any, q: Any, out: Any, lse: Any, partial: Any, seg: Any, k: Any, v: Any, scalars: Any) -> None:
    """Write the arrays' addresses and sizes; the caller sets the last six entries."""
    job[Q], job[OUT], job[LSE], job[PARTIAL] = addr(q), addr(out), addr(lse), addr(partial)
    job[BLOCKS], job[BLOCK_PTR], job[START], job[LENGTH] = addr(seg[0]), addr(seg[1]), addr(seg[2]), addr(seg[3])
    job[ROWS], job[ROW_PTR], job[POSITIONS] = addr(seg[4]), addr(seg[5]), addr(seg[6])
    job[K_DATA], job[K_GEOM], job[K_TABLE] = addr(k[0]), addr(k[1]), addr(k[2])
    job[V_DATA], job[V_GEOM], job[V_TABLE] = addr(v[0]), addr(v[1]), addr(v[2])
    job[K_PITCH], job[V_PITCH] = k[0].strides[0], v[0].strides[0]
    job[SCALARS] = addr(scalars)
    job[N_ROWS], job[N_HEADS], job[N_DIMS], job[N_KV] = q.shape[0], q.shape[1], q.shape[2], k[0].shape[0]
    job[N_CHUNKS], job[N_SEGMENTS] = partial.shape[0], seg[2].shape[0]


@kernel()
def queries(job: Any) -> Any:
    """q, out [R, H, D] and lse [R, H]."""
    rows, heads, dims = job[N_ROWS], job[N_HEADS], job[N_DIMS]
    return floats(job[Q], (rows, heads, dims)), floats(job[OUT], (rows, heads, dims)), floats(job[LSE], (rows, heads))


@kernel()
def codecs(job: Any) -> Any:
    """geom and table of K and of V."""
    return (
        longs(job[K_GEOM], GEOM),
        floats(job[K_TABLE], TABLE),
        longs(job[V_GEOM], GEOM),
        floats(job[V_TABLE], TABLE),
    )


@kernel()
def scalars(job: Any) -> Any:
    """scale, softcap."""
    return get_f32(job[SCALARS]), get_f32(job[SCALARS] + 4)
