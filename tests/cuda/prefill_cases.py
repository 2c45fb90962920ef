"""Attention of many rows against float64 arithmetic on what the tiles hold: cases for the device and the emulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from case_attention import Plan, Seq
from tiles import F64, tiles

from polykv.cache.codecs import codec
from polykv.fast.cuda import prefill_plan, prefill_run
from polykv.fast.cuda.arrays import asarray, asnumpy
from polykv.fast.cuda.device import device
from polykv.fast.cuda.prefill_config import config
from polykv.types import F32, Codec, KVArena, Segment, Segments

# Queries, lifted values and weights are halves: each is off by 2e-4 of itself.
ERROR = 1e-3

# Odd lengths; a document shared by sequences of one row and of many; sequences of their own; a segment in several.
PLANS = {
    "one": Plan((Seq(1, 1),)),
    "63": Plan((Seq(63, 63),)),
    "chunk": Plan((Seq(700, 63),), cut=3),
    "1000": Plan((Seq(1000, 70),)),
    "shared": Plan((Seq(130, 1), Seq(193, 40), Seq(150, 20)), shared=128),
    "ragged": Plan((Seq(1, 1), Seq(64, 64), Seq(65, 1), Seq(300, 7))),
}


NONE, IDS = np.zeros(0, np.int32), np.array([2, 0, 1], np.int32)
# An empty segment, one without rows, a row in no segment, a row before the first cell of its segment.
EMPTY = Segments.of(
    [
        Segment(IDS[:1], 0, 0, np.array([0, 1], np.int32)),
        Segment(NONE, 0, 0, np.array([2], np.int32)),
        Segment(IDS[:2], 0, 100, NONE),
        Segment(IDS[1:], 64, 70, np.array([0, 3], np.int32)),
    ],
    np.array([133, 5, 0, 63], np.int32),
)


@dataclass(frozen=True)
class Shape:
    """Heads, K/V heads, head_dim; window and softcap, 0 = none; peak: standard deviation of scores."""

    heads: int = 4
    n_kv: int = 1
    dim: int = 64
    window: int = 0
    softcap: float = 0.0
    peak: float = 1.0


def arena(of: Codec, shape: Shape, blocks: int, size: int, seed: int, values: bool) -> tuple[KVArena, F64]:
    """Random codes on the device, and what they stand for, [n_kv, cells, dim]."""
    made = tiles(of, shape.dim, shape.n_kv, blocks, size, seed, v=values, exact=True)
    data = asarray(made.data).transpose(1, 0, 2)
    return KVArena(of, shape.n_kv, shape.dim, size, {"data": data}), made.values


def expected(q: F32, k: F64, v: F64, segments: Segments, size: int, shape: Shape) -> tuple[F64, F64]:
    """out and lse in float64, from all cells that the segments give a row."""
    out, lse = np.zeros(q.shape), np.full(q.shape[:2], -np.inf)
    for r, position in enumerate(segments.positions.tolist()):
        cells = []
        for s in segments:
            at = np.arange(s.length)
            seen = (s.start + at <= position) & (s.start + at > position - (shape.window or 1 << 30))
            if r in s.rows:
                cells.append(s.blocks[at[seen] // size].astype(np.int64) * size + at[seen] % size)
        found = np.concatenate(cells) if cells else np.zeros(0, np.int64)
        for h in range(shape.heads) if found.size else ():
            g = h * shape.n_kv // shape.heads
            x = k[g, found] @ q[r, h].astype(np.float64) * shape.dim**-0.5
            x = shape.softcap * np.tanh(x / shape.softcap) if shape.softcap else x
            p = np.exp(x - x.max())
            out[r, h], lse[r, h] = p @ v[g, found] / p.sum(), x.max() + np.log(p.sum())
    return out, lse


@dataclass(frozen=True)
class Found:
    """Results of the device, and what they should be."""

    out: F32
    lse: F32
    want: F64
    want_lse: F64
    plan: prefill_plan.Plan
    peak: float

    def check(self, rows: slice | list[int] = slice(None)) -> None:
        """Results of these rows are there, and near enough: an error of scores is one of their standard deviation."""
        out, lse, want, want_lse = (a[rows] for a in (self.out, self.lse, self.want, self.want_lse))
        nothing = np.isneginf(want_lse)
        assert np.isneginf(lse[nothing]).all() and not out[nothing].any()
        assert np.sqrt(np.mean((out - want) ** 2) / np.mean(want**2)) < ERROR * max(1, self.peak / 2)
        assert np.sqrt(np.mean((lse[~nothing] - want_lse[~nothing]) ** 2)) < ERROR * max(1, self.peak)


def attention(
    pair: str,
    segments: Segments,
    blocks: int,
    shape: Shape,
    *,
    size: int = 64,
    limit: int = 0,
    room: int = 0,
    bad: float = 0.0,
) -> Found:
    """Run the kernels.

    pair: K and V; limit: bytes of shared memory, room: blocks lifted at a time, where not the device's own; bad:
    replaces a value of every seventh row.
    """
    k_codec, v_codec = map(codec, pair.split("/"))
    k, k_values = arena(k_codec, shape, blocks, size, 2, False)
    v, v_values = arena(v_codec, shape, blocks, size, 3, True)
    q = np.random.default_rng(4).standard_normal((len(segments.positions), shape.heads, shape.dim))
    q = (q * shape.peak).astype(np.float32)
    want = expected(q, k_values, v_values, segments, size, shape)
    if bad:
        q[1::7, 1, 5] = bad
    made = config(shape.dim, softcap=shape.softcap > 0, limit=limit or device().shared)
    step = prefill_run.step_of(segments, made, k, v, shape.heads, shape.window)
    if room:
        place = made.queries // (shape.heads // shape.n_kv)
        found = prefill_plan.plan(segments, shape.window, place=place, block_size=size, room=room, slots=2)
        step = prefill_run.on_device(found, segments, made, shape.n_kv)
    # Whatever lies in the memory of results must not matter.
    poisoned = [asarray(np.full(a.shape, np.nan, np.float32)) for a in (step.sums, step.weights, q)]
    step = replace(step, sums=poisoned[0], weights=poisoned[1])
    how = {"scale": shape.dim**-0.5, "window": shape.window, "softcap": shape.softcap}
    out, lse = prefill_run.run(step, made, asarray(q), k, v, **how, out=poisoned[2])  # type: ignore[arg-type]
    return Found(asnumpy(out), asnumpy(lse), *want, step.plan, shape.peak)
