"""Attention over segments, reading codes (twin of `polykv.ref.attention`): a few rows of a step.

1. queries into the space of the keys (a rotated type's), once
2. `attend`, items of a plan times K/V heads: partial results
3. `attend_merge`: those of a query joined
4. results out of the space of the values, once
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from polykv.errors import UnsupportedError
from polykv.fast.cuda.arrays import asarray, check, output
from polykv.fast.cuda.attend_config import config
from polykv.fast.cuda.attend_plan import long, sets_of
from polykv.fast.cuda.attend_run import run, step_of
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.fwht import fwht
from polykv.fast.cuda.layout import codec_limit, kind_of
from polykv.fast.cuda.levels import same_table
from polykv.types import F32, Codec, LayerKV, Segments


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
    for arena in (k, v):
        reason = codec_limit(arena.codec, head_dim, arena.block_size)
        if reason is not None:
            raise UnsupportedError(reason)
    sets = sets_of(segments, heads // k.n_kv)
    capped, limit = softcap > 0, device().shared
    how = {"one_table": same_table(k.codec, v.codec), "long": long(segments)}
    made = config(kind_of(k.codec), kind_of(v.codec), head_dim, sets, softcap=capped, limit=limit, **how)
    dims = made.width * made.slices
    step = step_of(segments, made, heads, k.n_kv, window)
    y, lse = run(step, made, _into(q, k.codec, dims), k, v, scale=scale, window=window, softcap=softcap)
    result[...] = _out_of(y, v.codec, head_dim)
    return result, lse


@cache
def _signs(codec: Codec, group: int, _: int) -> tuple[Any, Any]:
    first, last = codec.signs(group)
    return asarray(first), asarray(last)


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
