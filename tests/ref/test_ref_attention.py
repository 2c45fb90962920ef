"""attend and merge against plain softmax attention, golden results, and their own algebra."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from agreement import rms
from case_attention import AGENTS, TIERS, Plan, Seq, layer
from case_base import normal, seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv import ref
from polykv.cache.codecs import codec
from polykv.ops import load
from polykv.types import LayerKV, Segment, Segments, Slots


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, see: np.ndarray, cap: float = 0) -> np.ndarray:
    """Softmax attention of q [R, H, D] over k, v [n, G, D] in float64, without any trick."""
    share = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), share, axis=1) for a in (k, v))
    s = scale * np.einsum("rhd,nhd->rhn", q.astype(np.float64), k)
    if cap:
        s = cap * np.tanh(s / cap)
    s = np.where(see[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("rhn,nhd->rhd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("dim", "window", "cap"), [(64, 0, 0), (80, 30, 0), (256, 64, 3.0), (128, 1, 0)])
def test_attention_on_codes_is_attention_on_decoded_values(tier: str, dim: int, window: int, cap: float) -> None:
    plan = Plan((Seq(200, 5), Seq(150, 20)), shared=128)
    segments, _, n_blocks = plan.build("small")
    kv = layer(load("ref"), tier, n_blocks, 3, dim, 64)
    q = normal(seeded(tier), plan.n_rows, 9, dim)
    out, _ = ref.attend(q, segments, kv, scale=0.1, window=window, softcap=cap)
    for first, last in ((0, 5), (5, 25)):
        mine = [s for s in segments if first in s.rows]
        k, v = (
            np.concatenate([ref.kv_read(a, s.blocks).reshape(-1, 3, dim)[: s.length] for s in mine])
            for a in (kv.k, kv.v)
        )
        p, cells = segments.positions[first:last, None], np.arange(len(k))
        see = (cells <= p) & ((cells > p - window) if window else True)
        want = plain(q[first:last], k, v, 0.1, see, cap)
        assert rms(out[first:last] - want) / rms(want) < 1e-6


@pytest.mark.parametrize("size", [32, 64, 96, 160])
def test_long_segments_in_any_block_size(size: int) -> None:
    length, blocks = 2500, -(-2500 // size)
    ids = np.random.default_rng(size).permutation(blocks).astype(np.int32)
    kv = layer(load("ref"), "q8_0/turbo3", blocks, 1, 64, size)
    q = normal(seeded("long"), 2, 2, 64)
    segments = Segments.of([Segment(ids, 0, length, np.arange(2, dtype=np.int32))], np.array([2499, 1200], np.int32))
    out, _ = ref.attend(q, segments, kv, scale=0.2)
    k, v = (ref.kv_read(a, ids).reshape(-1, 1, 64)[:length] for a in (kv.k, kv.v))
    want = plain(q, k, v, 0.2, np.arange(length) <= segments.positions[:, None])
    assert rms(out - want) / rms(want) < 1e-6


def test_golden_attention(golden: Path) -> None:
    z, c = np.load(golden / "formats/attention.npz"), codec("turbo3")
    blocks, t = np.array([1, 0], np.int32), np.arange(96)
    slots = Slots(blocks[t // 64], (t % 64).astype(np.int32))
    kv = LayerKV(*(ref.kv_alloc(c, 2, 1, 128, 64) for _ in range(2)))
    ref.kv_append(kv.k, z["k"][:, None], slots)
    ref.kv_append(kv.v, z["v"][:, None], slots)
    for arena, want in ((kv.k, "plain_kbytes"), (kv.v, "plain_vbytes")):
        assert np.array_equal(ref.kv_pack(arena, blocks).reshape(128, 50)[:96], z[want])
    rows = np.arange(4, dtype=np.int32)
    segments = Segments.of([Segment(blocks, 0, 96, rows)], np.full(4, 95, np.int32))
    out, _ = ref.attend(z["q"][:, None].copy(), segments, kv, scale=128**-0.5)
    assert rms(out[:, 0] - z["plain_out_true"]) / rms(z["plain_out_true"]) < 1e-4
    # Against attention on the values before compression: the codec's own error, and no more.
    assert 0.01 < rms(out[:, 0] - z["out_exact_f64"]) / rms(z["out_exact_f64"]) < 0.4


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from(("f16", "q8_0/turbo3", "turbo3")))
@settings(deadline=None, max_examples=25)
def test_any_cut_gives_the_same_answer(parts: list[int], tier: str) -> None:
    n, length = sum(parts), sum(parts) * 64 - 17
    ids = np.random.default_rng(n).permutation(n).astype(np.int32)
    kv = layer(load("ref"), tier, n, 1, 64, 64)
    rows, at = np.arange(3, dtype=np.int32), np.array([length - 1, length // 2, 0], np.int32)
    q = normal(np.random.default_rng(1), 3, 4, 64)
    edges = np.cumsum([0, *parts])
    cut = [Segment(ids[a:b], int(a) * 64, int(min(b * 64, length) - a * 64), rows) for a, b in pairwise(edges)]
    whole = ref.attend(q, Segments.of([Segment(ids, 0, length, rows)], at), kv, scale=0.3)
    pieces = ref.attend(q, Segments.of(cut, at), kv, scale=0.3)
    for a, b in zip(whole, pieces, strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-6)


def test_a_shared_prefix_gives_each_sequence_its_own_answer() -> None:
    segments, _, n_blocks = AGENTS.build("agents")
    kv = layer(load("ref"), "q8_0/turbo3", n_blocks, 3, 64, 64)
    q = normal(seeded("agents"), AGENTS.n_rows, 9, 64)
    out, lse = ref.attend(q, segments, kv, scale=0.125)
    for row in range(0, AGENTS.n_rows, 5):
        own = [Segment(s.blocks, s.start, s.length, np.zeros(1, np.int32)) for s in segments if row in s.rows]
        o, l = ref.attend(q[row : row + 1], Segments.of(own, segments.positions[row : row + 1]), kv, scale=0.125)
        assert np.allclose(o[0], out[row], rtol=0, atol=1e-6) and np.allclose(l[0], lse[row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("tier", TIERS)
def test_large_scores_stay_finite(tier: str) -> None:
    kv = layer(load("ref"), tier, 2, 1, 64, 64)
    q = normal(seeded("large"), 1, 2, 64, scale=1e4)
    segments = Segments.of(
        [Segment(np.array([0, 1], np.int32), 0, 128, np.zeros(1, np.int32))], np.array([127], np.int32)
    )
    with np.errstate(all="raise", under="ignore"):
        out, lse = ref.attend(q, segments, kv, scale=1.0)
    assert lse.max() > 1e4
    assert np.isfinite(out).all() and np.isfinite(lse).all()


def test_lse_is_the_log_of_the_denominator() -> None:
    kv = layer(load("ref"), "f32", 1, 1, 16, 64)
    q = normal(seeded("lse"), 1, 1, 16)
    segments = Segments.of([Segment(np.zeros(1, np.int32), 0, 40, np.zeros(1, np.int32))], np.array([39], np.int32))
    _, lse = ref.attend(q, segments, kv, scale=0.5)
    s = 0.5 * ref.kv_read(kv.k, np.zeros(1, np.int32))[0, :40, 0].astype(np.float64) @ q[0, 0].astype(np.float64)
    assert lse[0, 0] == pytest.approx(np.log(np.exp(s).sum()), abs=1e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(0, 6))
@settings(deadline=None, max_examples=50)
def test_merge_is_associative(seed: int, parts: int, at: int) -> None:
    rng = np.random.default_rng(seed)
    outs, lses = normal(rng, parts, 4, 2, 8), normal(rng, parts, 4, 2, scale=10)
    gone = rng.random(lses.shape) < 0.3
    lses[gone], outs[gone] = -np.inf, 0
    whole = ref.merge(outs, lses)
    left, right = (ref.merge(outs[part], lses[part]) for part in (slice(None, at), slice(at, None)))
    again = ref.merge(np.stack([left[0], right[0]]), np.stack([left[1], right[1]]))
    assert np.allclose(whole[0], again[0], rtol=0, atol=1e-5) and np.allclose(whole[1], again[1], atol=1e-5)


def test_merge_of_nothing_is_nothing() -> None:
    out, lse = ref.merge(np.zeros((2, 1, 1, 4), np.float32), np.full((2, 1, 1), -np.inf, np.float32))
    assert not out.any() and np.isneginf(lse).all()
