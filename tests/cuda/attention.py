"""Attention of a step, on the device or in the emulator, against float64 arithmetic on what its tiles stand for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from tiles import tiles

from polykv.cache.codecs import CODECS
from polykv.fast.cuda.attend_config import Config
from polykv.types import Codec, KVArena, LayerKV, Segment, Segments

BLOCK = 64
# Queries are rounded to 15 bits, weights to 10 and more.
ERROR = 6e-4
Shape = tuple[int, int, int, int, tuple[int, int], int, float]


def arena(codec: Codec, head_dim: int, n_kv: int, data: np.ndarray) -> KVArena:
    from polykv.fast.cuda.arrays import asarray

    return KVArena(codec, n_kv, head_dim, BLOCK, {"data": asarray(data).transpose(1, 0, 2)})


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float, cap: float) -> tuple:
    """q [R, H, D], k and v [G, cells, D], seen [R, cells]: out and lse in float64."""
    out, lse = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    for r in range(len(q)):
        if not seen[r].any():
            continue
        for h in range(q.shape[1]):
            g = h * len(k) // q.shape[1]
            x = k[g][seen[r]] @ q[r, h].astype(np.float64) * scale
            x = cap * np.tanh(x / cap) if cap else x
            p = np.exp(x - x.max())
            out[r, h], lse[r, h] = p @ v[g][seen[r]] / p.sum(), x.max() + np.log(p.sum())
    return out, lse


def at_once(made: Config, layer: LayerKV, written: list[tuple[int, int]]) -> AbstractContextManager[None]:
    """All cells are there before attention begins; written: block and tile of the rows' own cells."""
    return nullcontext()


Late = Callable[[Config, LayerKV, list[tuple[int, int]]], AbstractContextManager[None]]


def compare(pair: tuple[str, str], shape: Shape, peak: float, *, long: bool = False, late: Late = at_once) -> None:
    """Two rows over a shared segment and a private one each.

    shape: heads, K/V heads, head_dim, cells of the shared segment and of the private ones, window, softcap; peak: of
    queries; long: in blocks as for long segments; late: see there.
    """
    from polykv.fast.cuda import attend_run as module
    from polykv.fast.cuda.arrays import asarray, asnumpy
    from polykv.fast.cuda.attend_config import config
    from polykv.fast.cuda.attend_plan import sets_of
    from polykv.fast.cuda.device import device
    from polykv.fast.cuda.layout import kind_of
    from polykv.fast.cuda.levels import same_table

    heads, n_kv, dim, shared, private, window, cap = shape
    k_codec, v_codec = (CODECS[name] for name in pair)
    blocks = shared // BLOCK + 2 * 2
    order = np.random.default_rng(1).permutation(blocks).astype(np.int32)
    k = tiles(k_codec, dim, n_kv, blocks, BLOCK, 2, v=False)
    v = tiles(v_codec, dim, n_kv, blocks, BLOCK, 3, v=True)
    common = order[: shared // BLOCK]
    own = [order[shared // BLOCK + 2 * i :][:2] for i in range(2)]
    rows, positions = np.arange(2, dtype=np.int32), np.array([shared + n - 1 for n in private], np.int32)
    items = [Segment(common, 0, shared, rows)] if shared else []
    items += [Segment(own[i], shared, n, rows[i : i + 1]) for i, n in enumerate(private) if n]
    segments = Segments.of(items, positions)
    q = (np.random.default_rng(4).standard_normal((2, heads, dim)) * peak).astype(np.float32)

    layer = LayerKV(arena(k_codec, dim, n_kv, k.data), arena(v_codec, dim, n_kv, v.data))
    made = config(
        kind_of(k_codec),
        kind_of(v_codec),
        dim,
        sets_of(segments, heads // n_kv),
        softcap=cap > 0,
        limit=device().shared,
        one_table=same_table(k_codec, v_codec),
        long=long,
        early=kind_of(k_codec).path or kind_of(v_codec).path,
    )
    step = module.step_of(segments, made, heads, n_kv, window)
    # Whatever lies in the memory of partial results must not matter.
    step.sums[...] = np.nan
    step.weights[...] = np.nan
    scale = dim**-0.5
    written = [(int(own[i][(n - 1) // BLOCK]), (n - 1) % BLOCK // 32) for i, n in enumerate(private)]
    with late(made, layer, written):
        out, lse = module.run(step, made, asarray(q), layer.k, layer.v, scale=scale, window=window, softcap=cap)

    cells = np.concatenate([common, *own])
    where = np.concatenate([np.arange(shared), *[shared + np.arange(2 * BLOCK)] * 2])
    owner = np.repeat([-1, 0, 1], [shared, 2 * BLOCK, 2 * BLOCK])
    seen = ((owner == -1) | (owner == rows[:, None])) & (where <= positions[:, None])
    if window:
        seen &= where > positions[:, None] - window

    def in_order(values: np.ndarray) -> np.ndarray:
        return values.reshape(n_kv, blocks, BLOCK, dim)[:, cells].reshape(n_kv, -1, dim)

    want, want_lse = expected(q, in_order(k.values), in_order(v.values), seen, scale, cap)
    got, got_lse = asnumpy(out), asnumpy(lse)
    assert np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) < ERROR
    # Queries have 15 bits, so that scores err in proportion to their size.
    assert np.all(np.abs(got_lse - want_lse) < 2e-3 + 5e-5 * np.abs(want_lse))
