"""The search behind sampling, on the host with one thread and few buckets, against the reference's sort."""

from __future__ import annotations

import ctypes
import shutil

import host
import numpy as np
import pytest

from polykv import ref

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

# A block of one thread. Eight buckets: the range of a search has to be narrowed many times.
BLOCK = """
#define BLOCK_THREADS 1
#define BLOCK_BUCKETS 8
#define __noinline__
#define __shared__ static
typedef unsigned long long u64;
using std::min;
using std::max;
inline int block_thread() { return 0; }
inline u64 block_smallest(u64 v) { return v; }
inline u64 block_largest(u64 v) { return v; }
inline u64 block_before(u64 v, u64& total) { total = v; return 0; }
inline void block_clear(u64* buckets) { for (int i = 0; i < BLOCK_BUCKETS; ++i) buckets[i] = 0; }
inline void block_add(u64* bucket, u64 v) { *bucket += v; }
template <typename Target> int block_bucket(const u64* buckets, Target target_of, u64& target, u64& before) {
    u64 total = 0;
    for (int i = 0; i < BLOCK_BUCKETS; ++i) total += buckets[i];
    target = min(target_of(total), total - 1);
    before = 0;
    for (int i = 0; i < BLOCK_BUCKETS; before += buckets[i++])
        if (target < before + buckets[i]) return i;
    __builtin_trap();
}
"""
ENTRY = """
#include "sample.cuh"
extern "C" int token(const float* logits, int n, float t, int k, float top_p, float min_p, double u) {
    return sample_row(logits, n, {t, k, top_p, min_p, u});
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return host.build(tmp_path_factory.mktemp("host"), ENTRY, {"block_select.cuh": BLOCK})


def draw(library: ctypes.CDLL, row: np.ndarray, t: float, k: int, top_p: float, min_p: float, u: float) -> int:
    numbers = (ctypes.c_float(t), k, ctypes.c_float(top_p), ctypes.c_float(min_p), ctypes.c_double(u))
    return library.token(host.pointer(row), len(row), *numbers)


def wanted(row: np.ndarray, t: float, k: int, top_p: float, min_p: float, u: float) -> int:
    f32 = [np.array([v], np.float32) for v in (t, top_p, min_p)]
    return int(ref.sample(row[None], f32[0], np.array([k], np.int32), f32[1], f32[2], np.array([u]))[0])


KINDS = ("normal", "rounded", "masked", "equal", "peaked", "signs", "huge")


def logits(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    row = (rng.standard_normal(n) * 3).astype(np.float32)
    if kind == "rounded":
        row = row.round(0)
    elif kind == "masked":
        row[rng.random(n) < 0.5] = -np.inf
        row[n // 2] = 1
    elif kind == "equal":
        row[:] = -2.5
    elif kind == "peaked":
        row[rng.integers(n)] = 60
    elif kind == "signs":
        row = rng.choice(np.array([-0.0, 0.0, 1e-30, -1e-30], np.float32), n)
    elif kind == "huge":
        row *= np.float32(1e30)
    return row


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 63, 1000])
def test_tokens_are_those_of_the_reference(library: ctypes.CDLL, kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(60):
        row = logits(kind, n, rng)
        t, k = rng.choice([0, 0.1, 0.7, 1, 3]), int(rng.choice([0, 1, 5, 40, 10**6]))
        top_p, min_p = rng.choice([1, 0.95, 0.5, 1e-6, 0]), rng.choice([0, 0.05, 0.5, 1])
        u = rng.choice([0.0, 1 - 2.0**-53, rng.random(), rng.random()])
        if u > 1 - 1e-12 and kind != "equal":
            # The very last place: the reference's sum may stop a rounding short of u, at a token of no weight.
            u = rng.random()
        setting = (float(t), k, float(top_p), float(min_p), float(u))
        assert draw(library, row, *setting) == wanted(row, *setting), setting


def test_nan_is_seen(library: ctypes.CDLL) -> None:
    row = np.array([1, np.nan, 3, np.nan], np.float32)
    assert draw(library, row, 0.0, 0, 1.0, 0.0, 0.5) == draw(library, row, 1.0, 2, 0.9, 0.0, 0.5) == 1


def test_every_token_of_a_beginning_is_drawn(library: ctypes.CDLL) -> None:
    """All of the distribution, at steps of u: top-k of equal logits are the lowest ids."""
    row = np.zeros(100, np.float32)
    found = [draw(library, row, 1.0, 10, 1.0, 0.0, (i + 0.5) / 10) for i in range(10)]
    assert found == list(range(10))


@pytest.mark.parametrize("n", [1 << 19, (1 << 19) + 1, (1 << 21) + 5])
def test_weights_of_long_rows_add_up(library: ctypes.CDLL, n: int) -> None:
    """Sums of 2^44 for each of so many logits would not fit 64 bits."""
    row = np.zeros(n, np.float32)
    for u in (0.0, 0.3, 0.9, 1 - 2.0**-40):
        assert draw(library, row, 1.0, 0, 1.0, 0.0, u) == int(u * n)
    assert draw(library, row, 1.0, 0, 0.5, 0.0, 1 - 2.0**-40) == -(-n // 2) - 1
