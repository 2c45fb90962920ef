"""Every type as K next to every type as V: attention on codes is attention on decoded values.

Head sizes and numbers of query heads per kv head take turns, such that every type, as K and as V, meets all of them;
`test_the_cases_cover` proves it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from attend_cases import answer, error

from polykv.cache.codecs import CODECS, codec
from polykv.fast.cpu import attend, kv_alloc, kv_append
from polykv.fast.cpu.attend_chunk import CHUNK
from polykv.types import F32, KVArena, LayerKV, Segment, Segments, Slots

NAMES = tuple(name for name in CODECS if name != "f32")
DIMS, GQA = (64, 72, 80, 96, 100, 128, 192, 256, 512), (1, 3, 4, 8)
BLOCK, BLOCKS = 64, 6
NONE, FIRST = np.zeros(0, np.int32), np.zeros(1, np.int32)
# K, V, head_dim, query heads per kv head.
CASES = tuple(
    (k, v, DIMS[(i + 2 * j) % len(DIMS)], GQA[(i + j) % len(GQA)])
    for i, k in enumerate(NAMES)
    for j, v in enumerate(NAMES)
)


def values(kind: str, name: str, *shape: int) -> F32:
    """Vectors that a codec must survive."""
    rng = np.random.default_rng(len(name) + shape[-1])
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "outlier":
        x[..., 3] *= 100
    elif kind == "huge":
        x *= np.float32(1e6)
    elif kind == "tiny":
        x *= np.float32(1e-39)
    elif kind == "zeros":
        x[::3] = 0
    elif kind == "constant":
        x[...] = x[..., :1]
    return x


@cache
def arena(side: str, name: str, dim: int, kind: str = "normal") -> KVArena:
    """All cells of BLOCKS blocks filled; two kv heads."""
    a = kv_alloc(codec(name), BLOCKS, 2, dim, BLOCK)
    t = np.arange(BLOCKS * BLOCK, dtype=np.int32)
    kv_append(a, values(kind, side + name, len(t), 2, dim), Slots(t // BLOCK, t % BLOCK))
    return a


def segments() -> Segments:
    """Row 0 sees 150 cells, an empty segment and one more cell; row 1 some of the first; row 2 the one cell; row 3
    none, as all are later than it."""
    rows = [np.array(r, np.int32) for r in ([0, 1], [0], [0, 2, 3])]
    ids = np.array([4, 0, 5], np.int32)
    items = [Segment(ids, 0, 150, rows[0]), Segment(NONE, 192, 0, rows[1]), Segment(FIRST + 2, 256, 1, rows[2])]
    return Segments.of(items, np.array([256, 77, 256, 100], np.int32))


def check(q: F32, s: Segments, kv: LayerKV, scale: float, window: int, bound: float = 1e-4) -> None:
    out, lse = attend(q, s, kv, scale=scale, window=window, out=np.full(q.shape, np.nan, np.float32))
    want, want_lse = answer(q, s, kv, scale, window)
    assert np.isfinite(out).all() and not np.isnan(lse).any()
    unseen = np.isneginf(want_lse)
    assert np.array_equal(np.isneginf(lse), unseen) and not out[unseen].any()
    assert error(out, want) <= bound if want.any() else not out.any()
    # Relative to the scores: what is rounded in a score grows with it.
    size = max(1.0, float(np.abs(want_lse[~unseen]).max()))
    np.testing.assert_allclose(lse[~unseen], want_lse[~unseen], rtol=0, atol=bound * size)


@pytest.mark.parametrize("k", NAMES)
def test_any_pair_on_any_head(k: str) -> None:
    s = segments()
    for _, v, dim, gqa in (c for c in CASES if c[0] == k):
        kv = LayerKV(arena("k", k, dim), arena("v", v, dim))
        q = values("normal", k + v, 4, 2 * gqa, dim)
        check(q, s, kv, dim**-0.5, 0)
        check(q, s, kv, dim**-0.5, 40)


@pytest.mark.parametrize("kind", ["outlier", "huge", "tiny", "zeros", "constant"])
@pytest.mark.parametrize("name", NAMES)
def test_wide_inputs(name: str, kind: str) -> None:
    """Nothing becomes infinite; scores are made of a moderate size, as their rounding is relative to them."""
    kv = LayerKV(arena("k", name, 64, kind), arena("v", name, 64, kind))
    q = values("normal", name, 4, 6, 64)
    scale = float(0.3 / np.abs(values(kind, "k" + name, 20, 2, 64)).max() / 8)
    check(q, segments(), kv, scale if np.isfinite(scale) and scale < 1e30 else 1.0, 0, 2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_long_segment(name: str) -> None:
    """4,096 cells, one row and many."""
    n, dim = 4096, 64
    t = np.arange(n, dtype=np.int32)
    kv = LayerKV(*(kv_alloc(codec(name), n // 8, 1, dim, 8) for _ in range(2)))
    for side, a in (("k", kv.k), ("v", kv.v)):
        kv_append(a, values("normal", side + name, n, 1, dim), Slots(t // 8, t % 8))
    for rows in (1, 5):
        s = Segments.of([Segment(t[: n // 8], 0, n, t[:rows])], np.arange(n - rows, n, dtype=np.int32))
        check(values("normal", name, rows, 3, dim), s, kv, dim**-0.5, 0)
    assert n > 2 * CHUNK


def test_the_cases_cover() -> None:
    assert len(CASES) == len(NAMES) ** 2 >= 13**2
    for side in (0, 1):
        for axis, every in ((2, DIMS), (3, GQA)):
            assert {(c[side], c[axis]) for c in CASES} == {(name, x) for name in NAMES for x in every}
