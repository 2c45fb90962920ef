"""Rope frequencies against the formulas written out one by one, and against published values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polykv.config import RopeConfig, RopeScaling
from polykv.model.rope import angles, for_context, inv_freq, magnitude

LLAMA31 = RopeConfig(
    500000.0,
    128,
    False,
    RopeScaling.LLAMA3,
    factor=8.0,
    original_context=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)
YARN = RopeConfig(1000000.0, 128, False, RopeScaling.YARN, factor=4.0, original_context=32768)


def plain(base: float, n: int) -> list[float]:
    return [base ** (-2 * i / n) for i in range(n // 2)]


@given(st.floats(1.5, 1e7), st.integers(1, 256).map(lambda h: 2 * h))
def test_default_and_linear(base: float, n: int) -> None:
    cfg = RopeConfig(base, n, True)
    assert inv_freq(cfg).dtype == np.float64
    np.testing.assert_allclose(inv_freq(cfg), plain(base, n), rtol=1e-12)
    linear = replace(cfg, scaling=RopeScaling.LINEAR, factor=8.0)
    np.testing.assert_allclose(inv_freq(linear), np.array(plain(base, n)) / 8, rtol=1e-12)
    assert magnitude(cfg) == magnitude(linear) == 1.0


def test_partial_uses_n_rot_and_proportional_uses_factors() -> None:
    """The same quarter of 256 dims: partial rope spreads the range over 64 dims, proportional stops after 32 pairs."""
    partial = inv_freq(RopeConfig(1e6, 64, False))
    factors = np.array([1.0] * 32 + [1e30] * 96, np.float32)
    proportional = inv_freq(RopeConfig(1e6, 256, False, freq_factors=factors))
    np.testing.assert_allclose(partial, plain(1e6, 64), rtol=1e-12)
    np.testing.assert_allclose(proportional[:32], plain(1e6, 256)[:32], rtol=1e-12)
    a = angles(RopeConfig(1e6, 256, False, freq_factors=factors), np.array([100000], np.int32))
    np.testing.assert_array_equal(a.cos[0, 32:], 1.0)
    np.testing.assert_allclose(a.sin[0, 32:], 0.0, atol=1e-20)


def test_llama3_against_the_published_rule() -> None:
    got, want = inv_freq(LLAMA31), []
    for f in plain(500000.0, 128):
        length = 2 * math.pi / f
        if length < 8192 / 4.0:
            want.append(f)
        elif length > 8192 / 1.0:
            want.append(f / 8)
        else:
            s = (8192 / length - 1.0) / (4.0 - 1.0)
            want.append((1 - s) * f / 8 + s * f)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    ratio = np.array(plain(500000.0, 128)) / got
    # Pairs 0..28 turn more than 4 times within 8,192 tokens, pairs from 35 on less than once.
    np.testing.assert_allclose(ratio[:29], 1.0, rtol=1e-12)
    np.testing.assert_allclose(ratio[35:], 8.0, rtol=1e-12)
    assert (np.diff(ratio[28:36]) > 0).all()


def test_llama3_keys_equal_the_tensor_of_gguf_files() -> None:
    """GGUF files hold inv_freq / scaled inv_freq as divisors; both ways give one set of frequencies."""
    base = replace(LLAMA31, scaling=RopeScaling.NONE)
    factors = (inv_freq(base) / inv_freq(LLAMA31)).astype(np.float32)
    np.testing.assert_allclose(inv_freq(replace(base, freq_factors=factors)), inv_freq(LLAMA31), rtol=1e-7)


def test_yarn_against_the_paper() -> None:
    got, plain_f = inv_freq(YARN), plain(1000000.0, 128)

    def turns(i: float) -> float:
        return 32768 / (2 * math.pi * 1000000.0 ** (2 * i / 128))

    # The real-valued pair indices at which a pair makes 32 turns and one turn, found by bisection.
    def index(target: float) -> float:
        lo, hi = 0.0, 128.0
        for _ in range(100):
            mid = (lo + hi) / 2
            lo, hi = (mid, hi) if turns(mid) > target else (lo, mid)
        return lo

    low, high = math.floor(index(32.0)), math.ceil(index(1.0))
    assert (low, high) == (23, 40)
    for i, f in enumerate(plain_f):
        r = min(1.0, max(0.0, (i - low) / (high - low)))
        assert got[i] == pytest.approx(f / 4 * r + f * (1 - r), rel=1e-12)
    assert magnitude(YARN) == pytest.approx(0.1 * math.log(4.0) + 1.0) == pytest.approx(1.1386294361)
    assert magnitude(replace(YARN, attn_factor=1.0)) == 1.0
    assert magnitude(replace(YARN, factor=1.0)) == 1.0


def test_longrope_chooses_one_factor_set_per_session() -> None:
    short, long = np.full(8, 1.5, np.float32), np.full(8, 12.0, np.float32)
    cfg = RopeConfig(10000.0, 16, False, RopeScaling.LONGROPE, 32.0, 4096, freq_factors=short, long_factors=long)
    f = np.array(plain(10000.0, 16))
    np.testing.assert_allclose(inv_freq(for_context(cfg, 4096)), f / 1.5)
    np.testing.assert_allclose(inv_freq(for_context(cfg, 4097)), f / 12.0)
    assert for_context(cfg, 4096).identity() != for_context(cfg, 4097).identity()
    assert magnitude(cfg) == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    assert for_context(YARN, 10**6) is YARN


@pytest.mark.parametrize("rows", [0, 1, 63, 1000])
def test_angles(rows: int) -> None:
    positions = np.random.default_rng(rows).integers(0, 1 << 20, rows).astype(np.int32)
    for cfg in (YARN, LLAMA31, RopeConfig(10000.0, 6, True)):
        a = angles(cfg, positions)
        assert a.cos.shape == a.sin.shape == (rows, cfg.n_rot // 2)
        assert a.cos.dtype == a.sin.dtype == np.float32 and a.interleaved == cfg.interleaved
        assert a.cos.flags.c_contiguous and a.sin.flags.c_contiguous
        theta = [[int(p) * float(f) for f in inv_freq(cfg)] for p in positions]
        want = np.array([[math.cos(t) for t in row] for row in theta]).reshape(a.cos.shape) * magnitude(cfg)
        np.testing.assert_allclose(a.cos, want, rtol=0, atol=1e-7)
        np.testing.assert_allclose(a.cos**2 + a.sin**2, magnitude(cfg) ** 2, rtol=1e-6)


@pytest.mark.parametrize("n_rot", [2, 6, 64, 128])
def test_rows_do_not_depend_on_each_other(n_rot: int) -> None:
    """Bit for bit, whatever vector width the sine uses: the base of batch invariance."""
    cfg = replace(YARN, n_rot=n_rot)
    positions = np.arange(0, 150000, 211, dtype=np.int32)
    whole = angles(cfg, positions)
    for r in (*range(8), 100, len(positions) - 1):
        one = angles(cfg, positions[r : r + 1])
        assert one.cos.tobytes() == whole.cos[r].tobytes() and one.sin.tobytes() == whole.sin[r].tobytes()
