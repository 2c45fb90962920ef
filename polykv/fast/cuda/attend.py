"""Attention over segments, reading codes (twin of `polykv.ref.attention`).

1. queries into the space of the keys (a rotated type's), once
2. a few rows: `attend_run`, which multiplies codes; many: `prefill_run`, which lifts codes to halves first
3. results out of the space of the values, once
4. those over codes and over exact cells, where there are both, become one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from polykv.errors import UnsupportedError
from polykv.fast.cuda import attend_config, attend_run, prefill_config, prefill_run
from polykv.fast.cuda.arrays import asarray, check, output
from polykv.fast.cuda.attend_plan import long, sets_of
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.fwht import fwht
from polykv.fast.cuda.layout import codec_limit, kind_of, slices_of
from polykv.fast.cuda.levels import same_table
from polykv.fast.cuda.merge import merge
from polykv.fast.cuda.shared_plan import shared_of
from polykv.types import F32, Codec, LayerKV, Segments

# Queries of a segment that share a K/V head, from which on attention of many rows is the faster one: attention of a few
# reads codes again for every eight. With 32,768 cells (H200, 32 heads over 8 K/V heads of 128 dims; many, few): 128
# queries of f16 take 139 and 231 us, of turbo3 191 and 187; 64 take 124 and 121, 177 and 92.
MANY = 128
How = dict[str, Any]


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
    how = {"scale": scale, "window": window, "softcap": softcap}
    if rows == 0:
        return result, cupy().empty((0, heads), np.float32)
    if segments.exact is None or kv.exact is None:
        return _attend(q, segments, kv, how, result)
    parts = ((segments, kv), (segments.exact, kv.exact))
    return merged([partial(_attend, q, *part, how) for part in parts], result)


def merged(parts: Sequence[Callable[[F32], tuple[F32, F32]]], out: F32) -> tuple[F32, F32]:
    """Results over disjoint cells as one, in `out` [R, H, D]: every part puts its own where it is told to."""
    n = len(parts)
    outs, lses = cupy().empty((n, *out.shape), np.float32), cupy().empty((n, *out.shape[:2]), np.float32)
    for part, to, lse in zip(parts, outs, lses, strict=True):
        lse[...] = part(to)[1]
    return merge(outs, lses, out=out)


def _attend(q: F32, segments: Segments, kv: LayerKV, how: How, result: F32) -> tuple[F32, F32]:
    """Over one kind of cells, `result` receives what is found."""
    k, v, head_dim = kv.k, kv.v, q.shape[2]
    for arena in (k, v):
        reason = codec_limit(arena.codec, head_dim, arena.block_size)
        if reason is not None:
            raise UnsupportedError(reason)
    width, slices = slices_of(head_dim)
    plain = width * slices == head_dim and not v.codec.rotated
    turned = space_of(q, k.codec, width * slices)
    y, lse = attend_codes(turned, segments, kv, **how, out=result if plain else None)
    if y is not result:
        out_of(y, v.codec, result)
    return result, lse


# Steps of segments in use: layers of one shape share one. A memo, gone with the segments.
_STEPS: WeakKeyDictionary[Segments, dict[Any, Any]] = WeakKeyDictionary()


def attend_codes(
    q: F32, segments: Segments, kv: LayerKV, *, scale: float, window: int, softcap: float, out: F32 | None = None
) -> tuple[F32, F32]:
    """Queries [R, H, dims] in the space of the keys to results [R, H, dims] in that of the values, and lse [R, H]."""
    heads, (k, v) = q.shape[1], (kv.k, kv.v)
    steps, how = _STEPS.setdefault(segments, {}), {"scale": scale, "window": window, "softcap": softcap}
    capped, limit = softcap > 0, device().shared
    if _many(segments, heads // k.n_kv):
        made = prefill_config.config(k.head_dim, softcap=capped, limit=limit)
        key: Any = made, heads, k.n_kv, window, k.codec, v.codec, k.block_size
        if key not in steps:
            steps[key] = prefill_run.step_of(segments, made, k, v, heads, window)
        return prefill_run.run(steps[key], made, q, k, v, **how, out=out)  # type: ignore[arg-type]
    shared = shared_of(segments, k.codec, v.codec, heads, k.n_kv, k.head_dim, capped)
    but = None if shared is None else shared.which
    kinds, sets = (kind_of(k.codec), kind_of(v.codec)), sets_of(segments, heads // k.n_kv, but)
    one_table, many = same_table(k.codec, v.codec), long(segments, but)
    few = attend_config.config(
        *kinds,
        k.head_dim,
        sets,
        softcap=capped,
        limit=limit,
        one_table=one_table,
        long=many,
        centered=k.codec.centered,
    )
    key = few, shared and shared.made, heads, k.n_kv, window
    if key not in steps:
        steps[key] = attend_run.step_of(segments, few, heads, k.n_kv, window, shared)
    room = None if out is None else (out, cupy().empty(q.shape[:2], np.float32))
    return attend_run.run(steps[key], few, q, k, v, **how, out=room)  # type: ignore[arg-type]


def _many(segments: Segments, group: int) -> bool:
    """Whether a segment has queries enough; a row with all of its heads has to fit a block of any device."""
    rows = np.diff(segments.row_ptr)
    return bool(rows.size) and int(rows.max()) * group >= MANY and group <= 32


@cache
def _signs(codec: Codec, group: int, _: int) -> tuple[Any, Any]:
    first, last = codec.signs(group)
    return asarray(first), asarray(last)


def space_of(q: Any, codec: Codec, dims: int) -> Any:
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


def out_of(y: Any, codec: Codec, result: Any) -> None:
    """y [R, H, dims] out of the space of the values, to result [R, H, D]."""
    head_dim = result.shape[2]
    if not codec.rotated:
        result[...] = y[:, :, :head_dim]
        return
    y = cupy().ascontiguousarray(y[:, :, : codec.stored_dim(head_dim)])
    signs = _signs(codec, codec.turn(head_dim), cupy().cuda.runtime.getDevice())
    if y.shape == result.shape:
        fwht(y, *signs, inverse=True, out=result)
    else:
        result[...] = fwht(y, *signs, inverse=True)[:, :, :head_dim]
