"""Fast backends give a row the same bits alone and in any batch, however its keys are cut, on any number of threads.

That is what makes N agents in one pool equal N separate runs, and a prefix-cache hit equal a miss, token by token.
"""

from __future__ import annotations

import case_attention
import numpy as np
import pytest
from case_attention import Plan, Seq, layer
from case_base import HOSTS, normal, packed, runs, seeded, weight
from case_model import GEMMA, LLAMA, QWEN, Shape, angles_of, attention_weights, mlp_weights

from polykv.cache.codecs import parse_tier
from polykv.config import CacheConfig
from polykv.fast.cpu.team import set_threads, threads
from polykv.ops import load
from polykv.types import F32, Activations, Angles, HeadWeights, LayerKV, Segment, Segments, Slots, WeightType

FAST = tuple(b for b in HOSTS if b != "ref")
# Tiers that a fast backend has kernels for; test_equivalence reports the others.
TIERS = tuple(t for t in case_attention.TIERS if any(runs(load(b), parse_tier(t).k, parse_tier(t).v) for b in FAST))
pytestmark = pytest.mark.parametrize("name", FAST)

# Long enough to cross several chunks of 512 positions; in the blocks that sessions use, and in large ones.
SEQUENCES = Seq(600, 1), Seq(1100, 3), Seq(1290, 17), Seq(577, 1), Seq(640, 40)
SHIPPED = Plan(SEQUENCES, shared=576, size=CacheConfig.block_size)
MIXED = Plan(SEQUENCES, shared=576, size=64)
plans = pytest.mark.parametrize("plan", (SHIPPED, MIXED), ids=lambda p: f"blocks{p.size}")


def alone(segments: Segments, row: int) -> Segments:
    """What one row sees, as the step of that row only."""
    own = [Segment(s.blocks, s.start, s.length, np.zeros(1, np.int32)) for s in segments if row in s.rows]
    return Segments.of(own, segments.positions[row : row + 1])


def cut(segments: Segments, cells: int, size: int) -> Segments:
    """The same cells in segments of at most `cells` (a multiple of UNIT), whole blocks of `size`."""
    items, every = [], cells // size
    for s in segments:
        for b in range(0, len(s.blocks), every):
            length = min(cells, s.length - b * size)
            items.append(Segment(s.blocks[b : b + every], s.start + b * size, length, s.rows))
    return Segments.of(items, segments.positions)


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("kind", WeightType)
def test_linear_rows(name: str, kind: WeightType, activations: Activations) -> None:
    ops, rng = load(name), seeded(kind.name)
    w, x = weight(rng, kind, 129, 768), normal(rng, 130, 768)
    together = ops.linear(x, w, activations=activations)
    for first, last in ((0, 1), (7, 8), (129, 130), (3, 5), (60, 63), (0, 64), (1, 130)):
        part = ops.linear(x[first:last].copy(), w, activations=activations)
        assert np.array_equal(part, together[first:last]), (first, last)


@pytest.mark.parametrize(("heads", "dim", "window"), [((9, 3), 64, 0), ((4, 1), 256, 512), ((4, 4), 72, 100)])
@pytest.mark.parametrize("tier", TIERS)
@plans
def test_attend_rows_and_cuts(name: str, plan: Plan, tier: str, heads: tuple[int, int], dim: int, window: int) -> None:
    ops = load(name)
    segments, _, n_blocks = plan.build("mixed")
    kv = layer(ops, tier, n_blocks, heads[1], dim, plan.size)
    q = normal(seeded(tier), plan.n_rows, heads[0], dim)

    def attend(q: F32, segments: Segments) -> tuple[F32, F32]:
        return ops.attend(q, segments, kv, scale=dim**-0.5, window=window)

    out, lse = attend(q, segments)
    for row in (0, 2, 4, 15, 21, 40, 61):
        o, l = attend(q[row : row + 1].copy(), alone(segments, row))
        assert np.array_equal(o[0], out[row]) and np.array_equal(l[0], lse[row]), row
    for cells in (64, 192, 512):
        o, l = attend(q, cut(segments, cells, plan.size))
        assert np.array_equal(o, out) and np.array_equal(l, lse), cells


@pytest.mark.parametrize(("heads", "dim", "window"), [((9, 3), 64, 0), ((4, 1), 256, 100)])
@pytest.mark.parametrize("tier", TIERS)
def test_attend_block_sizes(name: str, tier: str, heads: tuple[int, int], dim: int, window: int) -> None:
    """Where the cells are stored does not matter, nor whether blocks that slid out of all windows are listed."""
    ops, rng = load(name), seeded(tier)
    # Blocks of 8 and of 24 then begin at an odd piece of 8 cells.
    first, end = 360, 1100
    q, codecs = normal(rng, 40, heads[0], dim), parse_tier(tier)
    k, v = (packed(side, c, end + 96, heads[1], dim) for side, c in (("k", codecs.k), ("v", codecs.v)))
    positions = np.linspace(first + window, end - 1, len(q)).astype(np.int32)
    want = None
    for size in (64, 8, 16, 24, 32, 96, 128):
        n = -(-end // size)
        ids = rng.permutation(n).astype(np.int32)
        shape = n, heads[1], dim, size
        kv = LayerKV(ops.kv_alloc(codecs.k, *shape), ops.kv_alloc(codecs.v, *shape, values=True))
        for arena, data in ((kv.k, k), (kv.v, v)):
            # The cells past the end are others in every arena.
            data[end:] = data[rng.permutation(end)[:96]]
            ops.kv_unpack(arena, ids, data[: n * size].reshape(n, size, *data.shape[1:]))
        skipped = first // size if window else 0
        for drop in {0, skipped}:
            items = [Segment(ids[drop:], drop * size, end - drop * size, np.arange(len(q), dtype=np.int32))]
            got = ops.attend(q, Segments.of(items, positions), kv, scale=dim**-0.5, window=window)
            want = got if want is None else want
            assert np.array_equal(got[0], want[0]) and np.array_equal(got[1], want[1]), (size, drop)


def test_attend_threads(name: str) -> None:
    ops = load(name)
    segments, _, n_blocks = MIXED.build("mixed")
    kv = layer(ops, "q8_0/turbo3", n_blocks, 3, 64, 64)
    q = normal(seeded("threads"), MIXED.n_rows, 9, 64)
    before = threads()
    try:
        results = []
        for n in (before, 1):
            set_threads(n)
            results.append(ops.attend(q, segments, kv, scale=0.125))
    finally:
        set_threads(before)
    assert np.array_equal(results[0][0], results[1][0]) and np.array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("shape", [LLAMA, GEMMA, QWEN], ids=lambda s: s.name)
@plans
def test_attention_block_rows(name: str, plan: Plan, shape: Shape, activations: Activations) -> None:
    ops = load(name)
    segments, slots, n_blocks = plan.build("mixed")
    w = attention_weights(shape)
    kv = layer(ops, "q8_0/turbo3", n_blocks, shape.n_kv, shape.head_dim, plan.size)
    h0 = normal(seeded(shape.name), plan.n_rows, shape.embd)
    angles = angles_of(segments.positions, shape)
    together = h0.copy()
    ops.attention_block(together, w, kv, angles, segments, slots, activations=activations)
    for row in (0, 3, 20, 21, 61):
        one = slice(row, row + 1)
        h = h0[one].copy()
        turn = Angles(angles.cos[one].copy(), angles.sin[one].copy(), angles.interleaved)
        # The row writes its own cell again: with other bits, other rows would see it.
        here = Slots(slots.blocks[one].copy(), slots.offsets[one].copy())
        before = ops.kv_pack(kv.k, here.blocks), ops.kv_pack(kv.v, here.blocks)
        ops.attention_block(h, w, kv, turn, alone(segments, row), here, activations=activations)
        assert np.array_equal(h[0], together[row]), row
        assert np.array_equal(ops.kv_pack(kv.k, here.blocks), before[0])
        assert np.array_equal(ops.kv_pack(kv.v, here.blocks), before[1])


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("shape", [LLAMA, GEMMA], ids=lambda s: s.name)
def test_mlp_and_head_rows(name: str, shape: Shape, activations: Activations) -> None:
    ops, rng = load(name), seeded(shape.name)
    w, h0 = mlp_weights(shape), normal(rng, 70, shape.embd)
    out = HeadWeights(w.norm, weight(rng, shape.kinds[1], 333, shape.embd), shape.softcap, 1e-6)
    together = h0.copy()
    ops.mlp_block(together, w, activations=activations)
    logits = ops.head(h0, out, activations=activations)
    for first, last in ((0, 1), (33, 34), (69, 70), (2, 10)):
        h = h0[first:last].copy()
        ops.mlp_block(h, w, activations=activations)
        assert np.array_equal(h, together[first:last]), (first, last)
        part = ops.head(h0[first:last].copy(), out, activations=activations)
        assert np.array_equal(part, logits[first:last]), (first, last)
