"""The search for a path of trellis types (kernels/kv_trellis.cuh) on the host, against the reference.

Its costs are integers, so paths may be others than those of the reference, but hardly worse. In units of the float
that an edge becomes, whose last place is 2^-22, roundings are at most 2^-23 of the sum, as much of its constant part,
2^-24 of the square in that and of the slope times x: in all 3 2^-23. A unit is 1 / S, half of (max |x| + max |c|)^2 and
a thousandth. So what two paths of g values differ by is known to 3 g 2^-23 (max |x| + max |c|)^2, whatever the values
and the codebook; `BOUND` is a third more.
"""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import host
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kv_host import ENTRY, HOW, SHIM

from polykv import ref
from polykv.cache.codecs import codec
from polykv.fast.cpu import trellis as cpu
from polykv.fast.cuda.forms import Use, host_form
from polykv.ref.codec import without_reserved
from polykv.types import F32, Codec

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="g++ is not installed: device code needs a GPU then"
)

BOUND = 2.0**-21
NAMES = ("turbo3_tcq", "turbo2_tcq", "turbo3_tcq_n", "turbo2_tcq_n")
# All that the types lie in tiles with, at head dims up to 512.
GROUPS = (8, 16, 72, 128, 160, 224, 448)
SEARCH = """
template <int B> static void all(const float* levels, const float* x, int n, int g, u16* states) {
    alignas(16) static u8 memory[1 << 15];
    alignas(16) float y[512];
    alignas(16) u16 found[512];
    for (int i = 0; i < n; ++i) {
        memcpy(y, x + i * g, 4 * g);
        Search<B, 1>(levels, y, g, 0).run(y, g, found, (int*)memory, (u32*)(memory + 512));
        memcpy(states + i * g, found, 2 * g);
    }
}
extern "C" void search3(const float* l, const float* x, int n, int g, u16* s) { all<3>(l, x, n, g, s); }
extern "C" void search2(const float* l, const float* x, int n, int g, u16* s) { all<2>(l, x, n, g, s); }
"""
Search = Callable[[Codec, F32], np.ndarray]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text, (source, target, take, give) = SHIM + SEARCH, HOW["encode"]
    for name in ("TURBO3_TCQ", "TURBO2_TCQ"):
        pieces = {"take": take.format(t=name), "give": give.format(t=name)}
        text += ENTRY.format(entry="encode", type=name, source=source, target=target, **pieces)
    return host.build(tmp_path_factory.mktemp("paths"), text)


@pytest.fixture(scope="module")
def search(library: ctypes.CDLL) -> Search:
    def run(c: Codec, x: F32) -> np.ndarray:
        """States [n, g] of x [n, g]."""
        levels = host.aligned(np.array(c.centroids, np.float32).view(np.uint8))
        states = np.zeros(x.shape, np.uint16)
        sizes = ctypes.c_int(len(x)), ctypes.c_int(x.shape[1])
        library[f"search{c.bits}"](host.pointer(levels), host.pointer(x), *sizes, host.pointer(states))
        return states.astype(np.int64)

    return run


def costs(c: Codec, x: F32, states: np.ndarray) -> np.ndarray:
    return np.asarray(np.square(x.astype(np.float64) - np.array(c.centroids)[states]).sum(axis=-1))


def check(c: Codec, x: F32, got: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """That these are paths, and no worse than they may be; costs, those of the reference, and which are its paths."""
    assert (got < len(c.centroids)).all() and np.array_equal(got[:, 1:] & 63, got[:, :-1] >> c.bits)
    want = cpu.viterbi(x, np.array(c.centroids, np.float32), c.bits)
    cost, least = costs(c, x, got), costs(c, x, want)
    widest = np.abs(x).max(axis=1).astype(np.float64) + np.abs(c.centroids).max()
    assert (cost <= least + BOUND * x.shape[1] * widest**2).all()
    return cost, least, (got == want).all(axis=1)


def normal(n: int, g: int, seed: int) -> F32:
    """As rotated vectors are."""
    return (np.random.default_rng(seed).standard_normal((n, g)) / np.sqrt(128)).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_paths_of_normal_vectors(search: Search, name: str) -> None:
    """Measured of 20,000 vectors of 128 values each: 99.89 % (turbo3_tcq) to 99.995 % (turbo2_tcq) have the path of the
    reference; the worst excess is 1.8e-5 of a vector's error, the average 2e-9."""
    c = codec(name)
    for g, n in ((128, 4000), (64, 1000)):
        x = normal(n, g, 7)
        cost, least, same = check(c, x, search(c, x))
        assert same.mean() >= 0.995
        assert (cost <= least * (1 + 1e-4)).all() and cost.sum() <= least.sum() * (1 + 2e-8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("g", GROUPS)
def test_paths_of_extreme_vectors(search: Search, name: str, g: int) -> None:
    """All of the length in one value, or in a few; the same everywhere; nothing at all."""
    c, rng, length = codec(name), np.random.default_rng(g), np.sqrt(g / 128)
    one = np.zeros((20, g))
    one[np.arange(20), rng.integers(0, g, 20)] = rng.choice([-1, 1], 20)
    few = rng.standard_t(1, (40, g))
    flat = rng.choice([-1, 1], (40, g))
    flat[:2] = [[-1], [1]]
    x = np.concatenate([one, few, flat])
    x = (x / np.linalg.norm(x, axis=1, keepdims=True) * length).astype(np.float32)
    check(c, x, search(c, x))
    check(c, np.zeros((1, g), np.float32), search(c, np.zeros((1, g), np.float32)))


seeds = st.integers(0, 2**32 - 1)


@given(st.sampled_from([2, 3]), st.sampled_from(GROUPS[:4]), st.floats(-12, 0), st.floats(-12, 1), seeds)
@settings(deadline=None, max_examples=60)
def test_paths_of_any_codebook(search: Search, bits: int, g: int, book: float, scale: float, seed: int) -> None:
    """Levels and values of any size, all on one side too: sums do not overflow."""
    rng = np.random.default_rng(seed)
    levels = rng.standard_normal(64 << bits) * 2.0**book + rng.choice([0, 1, -1]) * rng.uniform(0, 1)
    levels = np.clip(levels, -1, 1).astype(np.float32)
    c = dataclasses.replace(codec(f"turbo{bits}_tcq"), centroids=tuple(map(float, levels)))
    x = (rng.standard_normal((5, g)) * 2.0**scale + rng.choice([0, 1, -1])).astype(np.float32)
    check(c, x, search(c, x))


@pytest.mark.parametrize("name", NAMES[:2])
def test_ties(search: Search, name: str) -> None:
    """Levels and values of few bits: very many paths are equally good, and one of them is found. Where all levels are
    one it is that of the reference."""
    c, rng = codec(name), np.random.default_rng(6)
    book = (rng.integers(-4, 5, len(c.centroids)) / 16).astype(np.float32)
    few = dataclasses.replace(c, centroids=tuple(map(float, book)))
    for x in ((rng.integers(-5, 6, (40, 64)) / 16).astype(np.float32), np.zeros((1, 128), np.float32)):
        cost, least, _ = check(few, x, search(few, x))
        assert np.array_equal(cost, least)
    same = dataclasses.replace(c, centroids=(0.25,) * len(book))
    x = np.full((2, 16), 0.25, np.float32)
    assert check(same, x, search(same, x))[2].all()


@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_no_numbers_give_the_first_path(search: Search, name: str) -> None:
    assert not search(codec(name), np.full((1, 64), np.nan, np.float32)).any()


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("kind", ["normal", "student_t3", "outlier", "zeros"])
def test_golden_streams(library: ctypes.CDLL, golden: Path, name: str, kind: str) -> None:
    c, x = codec(name), np.load(golden / "formats/vectors.npz")[f"x_{kind}"]
    form = [np.ascontiguousarray(a) for a in host_form(c, x.shape[1], Use.EXCHANGE)]
    want = ref.encode(c, x)
    got = np.zeros_like(want)
    for row, out in zip(x, got, strict=True):
        places = *map(host.pointer, form), host.pointer(np.ascontiguousarray(row)), host.pointer(out)
        library[f"encode_{name.upper()}"](*places, ctypes.c_int(0))
    tiers = np.load(golden / "formats/tiers.npz")
    assert np.array_equal(*(without_reserved(c, each) for each in (got, tiers[f"{name}_{kind}"])))
