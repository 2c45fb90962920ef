"""Attention over segments, reading codes (twin of `polykv.ref.attention`): a few rows of a step.

1. queries into the space of the keys (a rotated type's), once
2. `attend`, items of a plan times K/V heads: partial results
3. `attend_merge`: those of a query joined
4. results out of the space of the values, once
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from polykv.errors import UnsupportedError
from polykv.fast.cuda.arrays import asarray, check, output
from polykv.fast.cuda.attend_config import WARPS, Config, config
from polykv.fast.cuda.attend_plan import Plan, plan, sets_of
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.fwht import fwht
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.levels import levels
from polykv.types import F32, Codec, KVArena, LayerKV, Segments

LOG2E = 1.4426950408889634
MERGE_THREADS, MERGE_DIMS = 512, 32


@dataclass(frozen=True, eq=False)
class Step:
    """A plan on the device, with what every layer of a step shares: the table of blocks, rows, and partial results."""

    plan: Plan
    items: Any
    ptr: Any
    parts: Any
    blocks: Any
    rows: Any
    positions: Any
    sums: Any
    weights: Any


def step_of(segments: Segments, made: Config, heads: int, n_kv: int, window: int) -> Step:
    """The plan of a step for layers of one shape."""
    slots = device().processors * made.ctas
    found = plan(segments, heads, n_kv, window, sets=made.sets, turn=made.turn, slots=slots, teams=made.teams)
    cp, n = cupy(), len(found.items) * n_kv * found.queries
    tables = (found.items, found.ptr, found.parts, segments.blocks, segments.rows, segments.positions)
    there = [asarray(a) for a in tables]
    return Step(found, *there, cp.empty((n, made.width * made.slices), np.float32), cp.empty((n, 2), np.float32))


@cache
def _levels(codec: Codec, head_dim: int, _: int) -> tuple[Any, float]:
    words, unit = levels(codec, head_dim)
    return asarray(words), unit


@cache
def _signs(codec: Codec, group: int, _: int) -> tuple[Any, Any]:
    first, last = codec.signs(group)
    return asarray(first), asarray(last)


def run(step: Step, made: Config, q: F32, k: KVArena, v: KVArena, *, scale: float, window: int, softcap: float) -> Any:
    """Queries [R, H, D'] in the space of the keys to (out [R, H, D'] in the space of the values, lse [R, H])."""
    rows, heads, dims = q.shape
    cp, n_kv, where = cupy(), k.n_kv, cupy().cuda.runtime.getDevice()
    out, lse = cp.empty((rows, heads, dims), np.float32), cp.empty((rows, heads), np.float32)
    (k_levels, k_unit), (v_levels, v_unit) = _levels(k.codec, k.head_dim, where), _levels(v.codec, v.head_dim, where)
    # [blocks, heads, bytes], in whatever order they lie.
    data = k.fields["data"], v.fields["data"]
    turns = k.block_size // made.turn
    arguments = (
        *(q, step.items, step.rows, step.positions, step.blocks, *data),
        *(np.uint32(d.strides[0]) for d in data),
        *(np.int64(d.strides[1]) for d in data),
        *(turns.bit_length() - 1, heads, heads // n_kv, k_levels, v_levels),
        *(scale * LOG2E * k_unit, v_unit, softcap, window, step.sums, step.weights),
    )
    launch(
        kernel("attend.cu", "attend", **made.defines()),
        (len(step.plan.items), n_kv, 1),
        (32 * WARPS,),
        arguments,
        shared=made.shared,
    )
    merge = kernel("attend_merge.cu", "attend_merge", MERGE_DIMS=dims)
    arguments = (step.sums, step.weights, step.ptr, step.parts, out, lse)
    launch(merge, (rows * heads, dims // MERGE_DIMS), (MERGE_THREADS,), arguments)
    return out, lse


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
    """Softmax attention of q [R, H, D] over the segments' codes: out [R, H, D] in true space, lse [R, H].

    `segments` stay on the host, where they are made; all other arrays are on the device.
    """
    rows, heads, head_dim = check("q", q, np.float32, -1, -1, -1).shape
    result = output(out, (rows, heads, head_dim))
    if kv.exact is not None:
        raise UnsupportedError("the cuda backend does not attend to exact cells beside codes")
    if rows == 0:
        return result, cupy().empty((0, heads), np.float32)
    k, v = kv.k, kv.v
    sets = sets_of(segments, heads // k.n_kv)
    made = config(*(kind_of(c) for c in (k.codec, v.codec)), head_dim, sets, softcap=softcap > 0, limit=device().shared)
    dims = made.width * made.slices
    step = step_of(segments, made, heads, k.n_kv, window)
    y, lse = run(step, made, _into(q, k.codec, dims), k, v, scale=scale, window=window, softcap=softcap)
    result[...] = _out_of(y, v.codec, head_dim)
    return result, lse


def _into(q: Any, codec: Codec, dims: int) -> Any:
    """q [R, H, D] in the space of the keys, filled up with zeros to `dims`."""
    head_dim = q.shape[2]
    stored = codec.stored_dim(head_dim)
    wide = cupy().zeros((*q.shape[:2], dims), np.float32) if max(dims, stored) > head_dim else q
    if wide is not q:
        wide[:, :, :head_dim] = q
    if not codec.rotated:
        return wide
    turned, group = wide[:, :, :stored], codec.turn(head_dim)
    y = fwht(cupy().ascontiguousarray(turned), *_signs(codec, group, cupy().cuda.runtime.getDevice()))
    if stored == dims:
        return y
    wide[:, :, :stored] = y
    return wide


def _out_of(y: Any, codec: Codec, head_dim: int) -> Any:
    """y [R, H, dims] out of the space of the values, [R, H, D]."""
    if codec.rotated:
        y = cupy().ascontiguousarray(y[:, :, : codec.stored_dim(head_dim)])
        signs = _signs(codec, codec.turn(head_dim), cupy().cuda.runtime.getDevice())
        y = fwht(y, *signs, inverse=True)
    return y[:, :, :head_dim]
