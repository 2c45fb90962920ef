"""New keys and values into cells (kv_append of `polykv.ref.storage`), with what comes before they are coded.

    K: factors * rope(norm * rms_norm(k + bias))        V: factors * (v + bias)        each step where there is one

`write_both` is what a step of a model calls: one launch a layer, which takes the queries into the space of the keys
too. Q, K and V may be columns of one product. Where codes take long to find, those of trellis types, queries have a
launch of their own before, so that attention can begin with cells that were there before the step (attend.cu), on
devices that begin kernels early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda import follow
from polykv.fast.cuda.arrays import check
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.forms import WARPS, size_defines
from polykv.fast.cuda.kv import CudaArena, own, place
from polykv.fast.cuda.kv_seal import append_centered
from polykv.fast.cuda.layout import kind_of
from polykv.types import F32, Angles, KVArena, LayerKV, Slots


@dataclass(frozen=True, eq=False)
class New:
    """New vectors [R, heads, D], whose rows may lie apart. bias, factors [heads, D]: added to them at first, and
    multiplied by at last."""

    x: F32
    bias: F32 | None = None
    factors: F32 | None = None


@dataclass(frozen=True, eq=False)
class KeySteps:
    """Steps of keys and queries, between bias and factors: norm [D] of every head, then the angles of the rows."""

    norm: F32 | None = None
    eps: float = 0.0
    angles: Angles | None = None


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries [R, H, D] of the same rows, with the eps and the angles of the keys and a norm [D] of their own. out
    [R, H, dims]: receives them in the space of the keys, filled up with zeros."""

    new: New
    norm: F32 | None
    out: F32


def kv_append(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D] into the cells `slots`, of which none is named twice; for centered keys, x less the means
    of their blocks.

    Rows whose block is negative are left out: a graph that was captured for more rows than there are has such ones.
    """
    check("x", x, np.float32)
    if arena.codec.centered:
        append_centered(arena, x, slots)
    else:
        write(arena, New(x), slots)


def write(arena: KVArena, new: New, slots: Slots, steps: KeySteps | None = None) -> None:
    """`kv_append` after the steps, in one kernel."""
    a = own(arena)
    arguments = (*place(a), *a.form.tables, *_vectors(a, new), *_cells(a, new, slots, steps or KeySteps()))
    made = kernel("kv.cu", "kv_append", KV_TYPE=a.form.type)
    launch(made, (_blocks(a, new),), (32 * WARPS,), arguments, shared=a.form.shared)


def write_both(
    kv: LayerKV, k: New, v: New, slots: Slots, steps: KeySteps | None = None, queries: Queries | None = None
) -> None:
    """K and V of a layer, and its queries: one kernel, started twice if a side is of a trellis type (see above)."""
    a, b = own(kv.k), own(kv.v)
    if (len(k.x), a.n_kv, a.head_dim) != (len(v.x), b.n_kv, b.head_dim):
        raise ValueError("K and V of a layer have the same rows, heads and dims")
    sides = (*place(a), *a.form.tables[1:], *_vectors(a, k), *place(b), *b.form.tables[1:], *_vectors(b, v))
    arguments = (*sides, *_cells(a, k, slots, steps or KeySteps()), *_queries(a, queries, len(k.x)))
    sizes = {**size_defines("K", a.form.sizes), **size_defines("V", b.form.sizes)}
    made = kernel("kv_both.cu", "kv_append_both", KV_K=a.form.type, KV_V=b.form.type, **sizes)
    apart = follow.works() and (kind_of(a.codec).path or kind_of(b.codec).path)
    for first, tasks in ((0, 2),) if queries is None else ((2, 1), (0, 2)) if apart else ((0, 3),):
        heads = a.n_kv if queries is None or first + tasks < 3 else queries.out.shape[1]
        grid = -(-len(k.x) * heads // WARPS), tasks
        launch(made, grid, (32 * WARPS,), (*arguments, first), shared=max(a.form.shared, b.form.shared))


def _queries(a: CudaArena, q: Queries | None, n: int) -> tuple[Any, ...]:
    """Arguments for queries."""
    if q is None:
        return None, 0, None, None, None, 0, None, 0
    rows, heads, dims = check("the queries", q.out, np.float32, n, -1, -1).shape
    if dims < a.codec.stored_dim(a.head_dim) or heads % a.n_kv or len(q.new.x) != rows:
        raise ValueError(f"{rows} x {heads} queries of {dims} dims do not fit {n} x {a.n_kv} keys of {a.head_dim}")
    for name, each in (("bias", q.new.bias), ("factors", q.new.factors)):
        if each is not None:
            check(name, each, np.float32, heads, a.head_dim)
    if q.norm is not None:
        check("norm", q.norm, np.float32, a.head_dim)
    return q.new.x, _pitch(q.new.x, heads, a.head_dim), q.new.bias, q.new.factors, q.norm, heads, q.out, dims


def _blocks(a: CudaArena, new: New) -> int:
    return -(-len(new.x) * a.n_kv // WARPS)


def _vectors(a: CudaArena, new: New) -> tuple[Any, ...]:
    """Arguments that kernels take for the vectors of each side."""
    for name, each in (("bias", new.bias), ("factors", new.factors)):
        if each is not None:
            check(name, each, np.float32, a.n_kv, a.head_dim)
    return (new.x, _pitch(new.x, a.n_kv, a.head_dim), new.bias, new.factors)


def _cells(a: CudaArena, new: New, slots: Slots, steps: KeySteps) -> tuple[Any, ...]:
    """Arguments for both sides, and for keys alone."""
    n, norm, angles = len(new.x), steps.norm, steps.angles
    blocks = check("the blocks of slots", slots.blocks, np.int32, n)
    offsets = check("the offsets of slots", slots.offsets, np.int32, n)
    if norm is not None:
        check("norm", norm, np.float32, a.head_dim)
    cells = blocks, offsets, n, a.n_kv, norm, np.float64(steps.eps)
    if angles is None:
        return (*cells, None, None, 0, 0)
    half = angles.cos.shape[1]
    cosines, sines = (check("angles", each, np.float32, n, half) for each in (angles.cos, angles.sin))
    return (*cells, cosines, sines, half, int(angles.interleaved))


def _pitch(x: Any, heads: int, head_dim: int) -> int:
    """Floats from one row of x [R, heads, D] to the next; TypeError or ValueError as `check` raises."""
    # Where there is one head its stride means nothing.
    if x.ndim != 3 or (len(x) and (x.strides[2] != 4 or (heads > 1 and x.strides[1] != 4 * head_dim))):
        raise ValueError(f"x has shape {tuple(x.shape)}, not rows of [{heads}, {head_dim}] in one piece each")
    for row in x[:1]:
        check("a row of x", row, np.float32, heads, head_dim)
    return int(x.strides[0]) // 4
