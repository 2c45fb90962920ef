"""e^x for x <= 8, the one transcendental function of softmax, in 16 vector instructions.

Shorter than the general exp of `simd_math` because weights are small: no overflow, and below e^-87 they are zero.
e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2; e^r by a polynomial of degree 5 with relative error 1.1e-7 (minimax
fit of 1 + r + r^2 p(r)), so the result is within 2 ulp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import lane_f, splat_f
from polykv.fast.cpu.simd_core import I32, Floats, const, op
from polykv.fast.cpu.simd_wide import multiply_add

TERMS = (0.49999231, 0.16667115, 0.04189016, 0.00831252)
# ln 2 in two parts, of which the first has few bits, so that n times it is exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.428606765330187e-06
LOWEST = -87.0


def decayed(b: Any, x: Any) -> Any:
    """Emit e^x for lanes x <= 8; 0 for x < -87 and for -inf, NaN for NaN."""
    floats, ints = x.type, ir.VectorType(I32, x.type.count)
    lowest = const(floats, LOWEST)
    dead = b.fcmp_ordered("<", x, lowest)
    x = b.select(dead, lowest, x)
    # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
    magic = const(floats, 12582912.0)
    shifted = multiply_add(b, x, const(floats, 1.4426950408889634), magic)
    n = b.fsub(shifted, magic)
    r = multiply_add(b, n, const(floats, -LN2_HIGH), x)
    r = multiply_add(b, n, const(floats, -LN2_LOW), r)
    p = const(floats, TERMS[-1])
    for term in (*TERMS[-2::-1], 1.0, 1.0):
        p = multiply_add(b, p, r, const(floats, term))
    # p is in [0.7, 1.5]: adding n to its exponent is the exact product with 2^n.
    scaled = b.add(b.bitcast(p, ints), b.shl(b.bitcast(shifted, ints), const(ints, 23)))
    return b.select(dead, const(floats, 0.0), b.bitcast(scaled, floats))


@op(Floats, Floats)
def decay_f(b: Any, x: Any) -> Any:
    """`decayed` of 8 lanes."""
    return decayed(b, x)


@kernel()
def decay(x: Any) -> Any:
    """The same of one number."""
    return lane_f(decay_f(splat_f(x)), np.int32(0))
