"""The vector toolbox against NumPy: conversions, transposition, integer products at their extremes."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from polykv.fast.cpu import simd_weights
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.simd import load_f, load_u16x8, store_f, store_i, store_u16x8, sum_f, top_f
from polykv.fast.cpu.simd_math import exp_f, half_f, half_i, low_half, round_i, sigmoid_f, to_half
from polykv.fast.cpu.simd_weights import (
    BIAS,
    dot_4,
    dot_5,
    dot_8,
    dots_4,
    dots_5,
    dots_8,
    fifth_bits,
    gather2,
    gather4,
    gather16,
    half_4,
    half_6,
    iq4_codes,
    load4,
    store4,
)

RNG = np.random.default_rng(11)


def each(fn: Any) -> Any:
    """A loop over 8 floats at a time."""

    @numba.njit
    def run(x: int, y: int, n: int) -> None:
        for i in range(0, 4 * n, 32):
            store_f(y + i, fn(load_f(x + i)))

    def call(x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        run(address(x), address(y), x.size)
        return y

    return call


def test_exp() -> None:
    x = np.concatenate([np.linspace(-103, 88.7, 8000), [0, -np.inf, np.inf, np.nan, 1e-30, -1e-30, 1e30, -1e30]])
    x = x.astype(np.float32)
    y = each(exp_f)(x)
    with np.errstate(over="ignore"):
        want = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(y, want, rtol=2e-7, atol=1.5e-45)
    assert each(exp_f)(np.full(8, -np.inf, np.float32)).tolist() == [0.0] * 8
    np.testing.assert_allclose(
        each(sigmoid_f)(x[:8000]), 1 / (1 + np.exp(-x[:8000].astype(np.float64))), rtol=5e-7, atol=3e-39
    )


def test_every_half() -> None:
    @numba.njit
    def widen(x: int, y: int) -> None:
        for i in range(0, 1 << 16, 8):
            store_f(y + 4 * i, low_half(load_u16x8(x + 2 * i)))

    bits, y = np.arange(1 << 16, dtype=np.uint16), np.empty(1 << 16, np.float32)
    widen(address(bits), address(y))
    np.testing.assert_array_equal(y, bits.view(np.float16).astype(np.float32))
    scalar = numba.njit(lambda b: half_f(b))
    assert [scalar(np.int32(b)) for b in (0x3C00, 0x0001, 0xFBFF)] == [1.0, 2.0**-24, -65504.0]


def test_to_half_rounds_to_even() -> None:
    @numba.njit
    def narrow(x: int, y: int, n: int) -> None:
        for i in range(0, n, 8):
            store_u16x8(y + 2 * i, to_half(load_f(x + 4 * i)))

    edge = [
        65504,
        65519.9,
        65520,
        1e6,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        2.0**-24,
        2.0**-25,
        3 * 2.0**-25,
        2.0**-14,
        6e-5,
        1,
        2,
        3,
    ]
    ties = np.arange(1, 5000) * 2.0**-11 * 1.5
    x = np.concatenate([edge, RNG.standard_normal(40001) * 10.0 ** RNG.uniform(-9, 5, 40001), ties]).astype(np.float32)
    x = x[: x.size // 8 * 8]
    y = np.empty(x.size, np.float16)
    narrow(address(x), address(y.view(np.uint16)), x.size)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y.view(np.uint16), x.astype(np.float16).view(np.uint16))
    assert numba.njit(lambda v: half_i(v))(np.float32(1.0)) == 0x3C00


def test_round_half_away_from_zero() -> None:
    @numba.njit
    def run(x: int, y: int) -> None:
        store_i(y, round_i(load_f(x)))

    x = np.array([0.5, -0.5, 1.5, -2.5, 0.49999997, -0.49999997, 126.5, np.nan], np.float32)
    y = np.empty(8, np.int32)
    run(address(x), address(y))
    assert y.tolist() == [1, -1, 2, -3, 0, 0, 127, 0]


def test_folds() -> None:
    @numba.njit
    def run(x: int) -> tuple[float, float]:
        return sum_f(load_f(x)), top_f(load_f(x))

    x = np.array([3, -1, 4, 1, -5, 9, -2, 6], np.float32)
    assert run(address(x)) == (15.0, 9.0)


@pytest.mark.parametrize("pitch", [16, 18, 37, 0])
def test_gathers_transpose(pitch: int) -> None:
    @numba.njit
    def run(p: int, pitch: int, y: int) -> None:
        store4(y, gather16(p, pitch))
        store_i(y + 128, gather4(p, pitch))
        store_i(y + 160, gather2(p, pitch))

    data = RNG.integers(0, 256, 7 * pitch + 16, np.uint8)
    y = np.empty(192, np.uint8)
    run(address(data), pitch, address(y))
    rows = np.stack([data[r * pitch : r * pitch + 16] for r in range(8)])
    np.testing.assert_array_equal(y[:128].reshape(4, 8, 4), rows.reshape(8, 4, 4).transpose(1, 0, 2))
    np.testing.assert_array_equal(y[128:160].reshape(8, 4), rows[:, :4])
    np.testing.assert_array_equal(y[160:].reshape(8, 4), np.pad(rows[:, :2], ((0, 0), (0, 2))))


def test_bit_fields() -> None:
    @numba.njit
    def run(p: int, y: int) -> None:
        bits = fifth_bits(gather4(p, 4))
        store4(y, bits[:4])
        store4(y + 128, bits[4:])
        store4(y + 256, iq4_codes(gather16(p + 32, 16)))

    data = np.concatenate([RNG.integers(0, 256, 32, np.uint8), RNG.integers(0, 16, 128, np.uint8)])
    y = np.empty(384, np.uint8)
    run(address(data), address(y))
    bits = np.unpackbits(data[:32].reshape(8, 4), axis=1, bitorder="little")
    np.testing.assert_array_equal(y[:256].reshape(8, 8, 4), bits.reshape(8, 8, 4).transpose(1, 0, 2))
    table = np.array(simd_weights.IQ4)[data[32:].reshape(8, 4, 4).transpose(1, 0, 2)]
    np.testing.assert_array_equal(y[256:].reshape(4, 8, 4), (table + BIAS) & 255)


def _product(dots: Any) -> Any:
    @numba.njit
    def run(w: int, x: int, pitch: int, zero: int, n: int, y: int) -> None:
        for r, v in enumerate(dots(w, x, pitch, zero, n)):
            store_i(y + 32 * r, v)

    return run


KINDS = {
    "4": (dots_4, 32, 15),
    "5": (dots_5, 32, 31),
    "8": (dots_8, 32, 255),
    "half 4": (half_4, 16, 15),
    "half 6": (half_6, 16, 63),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", ["random", "largest", "smallest"])
def test_dots_are_exact(name: str, kind: str) -> None:
    """Also where the sums of products nearly overflow 16 bits."""
    made, cols, top = KINDS[name]
    for dots, rows in zip(made, (1, 4, 8), strict=True):
        x = np.zeros((rows, 40), np.int8)
        x[:, :cols] = RNG.integers(-127, 128, (rows, cols)) if kind == "random" else 127 if kind == "largest" else -127
        sums = RNG.integers(-4000, 4000, rows).astype(np.int32)
        x[:, 36:] = sums.view(np.int8).reshape(rows, 4)
        w = RNG.integers(0, top + 1, (8, cols)) if kind == "random" else np.full((8, cols), top)
        if top == 255:
            # 8-bit codes are signed, plus BIAS.
            w = (w if kind == "random" else 0 * w) - 128 + BIAS
        packed = np.ascontiguousarray(w.reshape(8, cols // 4, 4).transpose(1, 0, 2)).astype(np.uint8)
        y = np.empty((rows, 8), np.int32)
        _product(dots)(address(packed), address(x), 40, 7, 36, address(y))
        np.testing.assert_array_equal(y, x[:, :cols].astype(int) @ w.T - 7 * sums[:, None].astype(int))


def test_dots_of_registers_are_exact() -> None:
    """`dot_*` of largest codes, both halves."""
    for dot, top in ((dot_4, 15), (dot_5, 31), (dot_8, 127 + BIAS)):
        x, w = np.full(32, -127, np.int8), np.full(256, top, np.uint8)
        y = np.empty(8, np.int32)
        _register_dot(dot)(address(w), address(x), address(y))
        np.testing.assert_array_equal(y, np.full(8, -127 * 32 * top + 5))


def _register_dot(dot: Any) -> Any:
    @numba.njit
    def run(w: int, x: int, y: int) -> None:
        store_i(y, dot(load4(w), load4(w + 128), x, 5))

    return run
