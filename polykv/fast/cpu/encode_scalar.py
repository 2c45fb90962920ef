"""Codes of plain and scalar types, 8 groups at a time (twin of `polykv.ref.plain` and `polykv.ref.scalar`).

Every function takes a tile (float32 [g, 8], see `encode_simd`) and leaves codes, int32 [g, 8], in its place. Rules:
docs/FORMATS.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_simd import cut_i, grow_peak, inverse_f, nearest_i, not_less, pick_f, quotient_f, rank14
from polykv.fast.cpu.kv_layout import F16_, F32_, LEVELS
from polykv.fast.cpu.simd import load_f, splat_f, splat_i, store_f, store_i
from polykv.fast.cpu.simd_math import (
    abs_f,
    add_f,
    add_i,
    clamp_f,
    div_f,
    field,
    floats_i,
    max_f,
    min_f,
    mul_f,
    sub_f,
    to_half,
)

# The largest finite float16: a scale beyond it would decode to infinity.
F16_MAX = np.float32(65504.0)
# The largest finite bfloat16.
BF16_MAX = np.array(0x7F7F0000, np.uint32).view(np.float32).item()
ZERO, HALF, F127 = np.float32(0.0), np.float32(0.5), np.float32(127.0)
# Vectors of a group of 32.
BLOCK = 32 * 32


@kernel()
def plain_tile(x: int, g: int, family: int) -> None:
    """Bits of float32, float16 or bfloat16."""
    if family == F32_:
        return
    for p in range(x, x + 32 * g, 32):
        if family == F16_:
            store_i(p, to_half(clamp_f(load_f(p), F16_MAX)))
        else:
            bits = floats_i(clamp_f(load_f(p), np.float32(BF16_MAX)))
            odd = field(bits, np.int32(16), np.int32(1))
            store_i(p, field(add_i(add_i(bits, odd), splat_i(np.int32(0x7FFF))), np.int32(16), np.int32(0xFFFF)))


@kernel()
def q8_tile(x: int) -> Any:
    """Codes are int8; returns the scales."""
    top = splat_f(ZERO)
    for p in range(x, x + BLOCK, 32):
        top = max_f(abs_f(load_f(p)), top)
    d = clamp_f(div_f(top, splat_f(F127)), F16_MAX)
    inverse = inverse_f(d)
    for p in range(x, x + BLOCK, 32):
        # Half away from zero, as C's roundf.
        store_i(p, field(nearest_i(mul_f(load_f(p), inverse), F127), np.int32(0), np.int32(255)))
    return d


@kernel()
def _peak(x: int) -> Any:
    """The values of largest magnitude, the first ones on a tie."""
    peak = splat_f(ZERO)
    for p in range(x, x + BLOCK, 32):
        peak = grow_peak(peak, abs_f(peak), load_f(p))
    return peak


@kernel()
def signed_tile(x: int, half: np.float32) -> Any:
    """Codes 0 .. 2 half - 1 around `half`; returns the scales, such that the peak has code 0."""
    d = clamp_f(div_f(_peak(x), splat_f(-half)), F16_MAX)
    inverse, middle, last = inverse_f(d), splat_f(half + HALF), half + half - np.float32(1)
    for p in range(x, x + BLOCK, 32):
        store_i(p, cut_i(add_f(mul_f(load_f(p), inverse), middle), last))
    return d


@kernel()
def least(x: int) -> Any:
    """The smallest values, within the range of float16."""
    low = load_f(x)
    for p in range(x, x + BLOCK, 32):
        low = min_f(load_f(p), low)
    return clamp_f(low, F16_MAX)


@kernel()
def ranged_tile(x: int, low: Any, last: np.float32) -> Any:
    """Codes 0 .. last from the minima `low` up; returns the scales."""
    high = load_f(x)
    for p in range(x, x + BLOCK, 32):
        high = max_f(load_f(p), high)
    # Where the minimum was clamped from below, all values may lie under it.
    d = clamp_f(max_f(div_f(sub_f(high, low), splat_f(last)), splat_f(ZERO)), F16_MAX)
    inverse = inverse_f(d)
    for p in range(x, x + BLOCK, 32):
        store_i(p, cut_i(add_f(mul_f(sub_f(load_f(p), low), inverse), splat_f(HALF)), last))
    return d


@kernel()
def iq4_tile(x: int, table: int) -> Any:
    """Codes into the 16 levels of `table`; returns the scales of least error for them."""
    for p in range(x, x + BLOCK, 32):
        store_f(p, clamp_f(load_f(p), F127 * F16_MAX))
    d = div_f(_peak(x), splat_f(-F127))
    inverse = inverse_f(d)
    xy, yy = splat_f(ZERO), splat_f(ZERO)
    levels = table + 4 * LEVELS
    for p in range(x, x + BLOCK, 32):
        given = load_f(p)
        v = mul_f(given, inverse)
        # Between the levels `lower` and `lower` + 1; the nearer one, on a tie the upper one.
        lower = rank14(v, levels + 4)
        below, above = pick_f(levels, lower), pick_f(levels + 4, lower)
        code = add_i(lower, not_less(sub_f(v, below), sub_f(above, v)))
        store_i(p, code)
        # In order: the bytes depend on it.
        level = pick_f(levels, code)
        weighted = mul_f(mul_f(given, given), level)
        xy, yy = add_f(xy, mul_f(weighted, given)), add_f(yy, mul_f(weighted, level))
    return clamp_f(quotient_f(xy, yy, ZERO, d), F16_MAX)
