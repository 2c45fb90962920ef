"""Cases of attend: tiers, head sizes, GQA, windows, softcaps, and every shape of a list of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from case_base import HEAD_DIMS, Arrays, Case, normal, poison, seeded
from case_kv import filled

from polykv.cache.codecs import CODECS, parse_tier
from polykv.config import CacheConfig
from polykv.ops import Ops
from polykv.types import LayerKV, Segment, Segments, Slots

MIXED = ("q8_0/turbo3", "turbo3/q8_0", "f16/q4_0", "turbo4/turbo2_tcq", "q5_1/turbo3", "turbo3_tcq/q4_0")
TURNED = ("q8_0+r", "q4_0+r", "q4_0+r/turbo3", "q5_1+r/iq4_nl+r")
TIERS = (*CODECS, *MIXED, *TURNED)
# Types whose keys are multiplied as integers.
SCALAR = ("q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
HEADS = ((4, 4), (9, 3), (4, 1), (9, 1))


@dataclass(frozen=True)
class Seq:
    """A sequence of `length` cells whose last `rows` tokens are the rows of this step."""

    length: int
    rows: int


@dataclass(frozen=True)
class Plan:
    """Sequences whose first `shared` cells are the same blocks; the rest is cut every `cut` blocks (0 = never)."""

    seqs: tuple[Seq, ...]
    shared: int = 0
    cut: int = 0
    size: int = 64

    @property
    def n_rows(self) -> int:
        return sum(s.rows for s in self.seqs)

    def build(self, name: str) -> tuple[Segments, Slots, int]:
        """Segments, the slots of the rows' own cells, and the number of physical blocks (which are in random order)."""
        n_shared = self.shared // self.size
        private = [-(-(s.length - self.shared) // self.size) for s in self.seqs]
        ids = seeded(name).permutation(n_shared + sum(private)).astype(np.int32)
        prefix, rest = ids[:n_shared], ids[n_shared:]
        items = [Segment(prefix, 0, self.shared, np.arange(self.n_rows, dtype=np.int32))] if n_shared else []
        positions, blocks, row = [], [], 0
        for s, n in zip(self.seqs, private, strict=True):
            own, rest = rest[:n], rest[n:]
            rows = np.arange(row, row + s.rows, dtype=np.int32)
            step = self.cut or max(n, 1)
            for first in range(0, n, step):
                start = self.shared + first * self.size
                length = min(step * self.size, s.length - start)
                items.append(Segment(own[first : first + step], start, length, rows))
            at = np.arange(s.length - s.rows, s.length, dtype=np.int32)
            positions.append(at)
            blocks.append(np.concatenate([prefix, own])[at // self.size])
            row += s.rows
        where = np.concatenate(positions)
        slots = Slots(np.concatenate(blocks), (where % self.size).astype(np.int32))
        return Segments.of(items, where), slots, len(ids)


ONE = Plan((Seq(1000, 1),))
PREFILL = Plan((Seq(63, 63),))
CHUNK = Plan((Seq(700, 63),), cut=3)
AGENTS = Plan((Seq(577, 1), Seq(640, 1), Seq(1100, 5), Seq(600, 24)), shared=576)
SHIPPED = Plan(AGENTS.seqs, shared=576, size=CacheConfig.block_size)
RAGGED = Plan((Seq(1, 1), Seq(64, 64), Seq(65, 1), Seq(1000, 7)))
# 1300 cells in blocks that do not divide a power of two.
ODD = Plan((Seq(1300, 5), Seq(200, 1)), shared=192, size=96)
SMALL = Plan((Seq(80, 3), Seq(73, 1)), shared=64, size=8)


def cases() -> Iterator[Case]:
    for i, tier in enumerate(TIERS):
        for j, dim in enumerate(HEAD_DIMS):
            yield attend("decode", Plan((Seq(100, 1),)), tier, HEADS[(i + j) % 4], dim)
        for j, (name, plan) in enumerate((("one", ONE), ("prefill", PREFILL), ("chunk", CHUNK), ("agents", AGENTS))):
            yield attend(name, plan, tier, HEADS[(i + j + 1) % 4], 64)
        yield attend("agents", AGENTS, tier, (4, 1), 256, window=512)
        yield attend("ragged", RAGGED, tier, (9, 3), 64, window=100)
        yield attend("ragged", RAGGED, tier, (4, 1), 72, window=16, softcap=5.0)
        yield attend("prefill", PREFILL, tier, (9, 3), 100, window=40)
        yield attend("small", SMALL, tier, (4, 4), 128, softcap=30.0)
        # Scores of thousands: what 16-bit queries (of integer keys) and 16-bit levels (of long tables) leave of a score
        # is then a hundredth.
        k = parse_tier(tier).k
        coarse = k.name.split("+")[0] in SCALAR or len(k.centroids) > 16
        yield attend("large-scores", AGENTS, tier, (9, 3), 64, gain=1000.0, tolerance=5e-3 if coarse else -1.0)
        # A row of NaN says so, and its neighbours are as ever.
        yield attend("nan", RAGGED, tier, (9, 3), 64, bad=np.nan)
    # The block size that sessions use.
    yield attend("shipped-blocks", SHIPPED, "q8_0/turbo3", (9, 3), 64)
    yield attend("shipped-blocks", SHIPPED, "q8_0/turbo3", (4, 1), 256, window=512)
    yield attend("shipped-blocks", SHIPPED, "f16", (4, 1), 128)
    yield attend("blocks96", ODD, "q8_0/turbo3", (9, 3), 64)
    yield attend("blocks96", ODD, "f16", (4, 1), 128, window=300)
    yield attend("rows1000", Plan((Seq(1000, 1000),)), "q8_0/turbo3", (3, 1), 64)
    yield attend("agents64", Plan(tuple(Seq(520 + i, 1) for i in range(64)), shared=512), "q8_0/turbo3", (9, 3), 64)
    yield from (empty(tier) for tier in TIERS)


def attend(
    what: str,
    plan: Plan,
    tier: str,
    heads: tuple[int, int],
    dim: int,
    window: int = 0,
    softcap: float = 0.0,
    gain: float = 1.0,
    tolerance: float = -1.0,
    bad: float = 0.0,
) -> Case:
    name = f"{what}-{tier.replace('/', '+')}-h{heads[0]}g{heads[1]}-d{dim}-w{window}-c{softcap:g}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        segments, _, n_blocks = plan.build(what)
        kv = layer(ops, tier, n_blocks, heads[1], dim, plan.size)
        q = normal(seeded(name), plan.n_rows, heads[0], dim, scale=gain)
        if bad != 0:
            q[1::7, 1, 5] = bad
        scale = dim**-0.5
        return lambda: ops.attend(q, segments, kv, scale=scale, window=window, softcap=softcap, out=poison(*q.shape))

    pair = parse_tier(tier)
    return Case("attend", name, prepare, tolerance=tolerance, storage=(pair.k, pair.v, dim, plan.size))


def empty(tier: str) -> Case:
    """An empty segment, a segment without rows, a row in no segment, a row before the first cell of its segment."""

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        kv = layer(ops, tier, 3, 2, 64, 64)
        q = normal(seeded(tier), 4, 4, 64)
        none, ids = np.zeros(0, np.int32), np.array([2, 0, 1], np.int32)
        segments = Segments.of(
            [
                Segment(ids[:1], 0, 0, np.array([0, 1], np.int32)),
                Segment(none, 0, 0, np.array([2], np.int32)),
                Segment(ids[:2], 0, 100, none),
                Segment(ids[1:], 64, 70, np.array([0, 3], np.int32)),
            ],
            np.array([133, 5, 0, 63], np.int32),
        )
        nothing = Segments.of([], np.zeros(0, np.int32))
        return lambda: (
            *ops.attend(q, segments, kv, scale=0.125, out=poison(*q.shape)),
            *ops.attend(q[:0], nothing, kv, scale=0.125),
        )

    pair = parse_tier(tier)
    return Case("attend", f"empty-{tier.replace('/', '+')}", prepare, storage=(pair.k, pair.v, 64, 64))


def layer(ops: Ops, tier: str, n_blocks: int, n_kv: int, dim: int, size: int) -> LayerKV:
    """K and V of one layer, full of codes that are the same in every backend."""
    codecs = parse_tier(tier)
    return LayerKV(
        filled(ops, "k", codecs.k, n_blocks, n_kv, dim, size),
        filled(ops, "v", codecs.v, n_blocks, n_kv, dim, size, values=True),
    )
