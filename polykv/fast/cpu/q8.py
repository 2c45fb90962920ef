"""Rows of activations rounded to int8, 32 values to a scale, in the form that the weight kernels read.

    d = max|x| / 127,  q = round(x / d), halves away from zero

A block of 32 values is one cache line of 64 bytes:

    q int8 [32] @0 | d f32 @32 | n int32 @36 | d*n f32 @40 | n of each 16 int32 [2] @44 | d*n of each 16 f32 [2] @52

n is the sum of the codes: offsets and minimums of weight types multiply it. A row of `cols` values takes 2 * cols
bytes.
"""

from __future__ import annotations

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import (
    load_f,
    put_f32,
    put_i32,
    splat_f,
    store_i8x8,
    sum_i,
    top_f,
)
from polykv.fast.cpu.simd_math import abs_f, add_i, max_f, mul_f, round_i

BLOCK = 64
# Scales below this have no float32 inverse; such blocks become zeros.
TINY = np.finfo(np.float32).tiny
F127, ONE, ZERO = np.float32(127), np.float32(1), np.float32(0)


@kernel()
def quantize_row(x: int, cols: int, q: int) -> None:
    """float32 [cols] at address x to blocks at address q; cols is a multiple of 32."""
    for _ in range(cols // 32):
        v0, v1, v2, v3 = load_f(x), load_f(x + 32), load_f(x + 64), load_f(x + 96)
        top = top_f(max_f(max_f(abs_f(v0), abs_f(v1)), max_f(abs_f(v2), abs_f(v3))))
        d = top / F127
        inverse = splat_f(ONE / d if d >= TINY else ZERO)
        i0, i1 = round_i(mul_f(v0, inverse)), round_i(mul_f(v1, inverse))
        i2, i3 = round_i(mul_f(v2, inverse)), round_i(mul_f(v3, inverse))
        store_i8x8(q, i0)
        store_i8x8(q + 8, i1)
        store_i8x8(q + 16, i2)
        store_i8x8(q + 24, i3)
        first, second = sum_i(add_i(i0, i1)), sum_i(add_i(i2, i3))
        put_f32(q + 32, d)
        put_i32(q + 36, first + second)
        put_f32(q + 40, d * (first + second))
        put_i32(q + 44, first)
        put_i32(q + 48, second)
        put_f32(q + 52, d * first)
        put_f32(q + 56, d * second)
        x += 128
        q += BLOCK
