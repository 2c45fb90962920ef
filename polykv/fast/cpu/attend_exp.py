"""e^x for x <= 0, the one transcendental function of softmax, in 17 vector instructions.

Shorter than the general exp of `simd_math` because weights are at most 1: no overflow, and below e^-87 they are zero.
e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2; e^r by a polynomial of degree 6 with relative error 3e-9 (fitted
to 1 + r + r^2 p(r) at Chebyshev nodes), so the result is within 1.5 ulp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import lane_f, splat_f
from polykv.fast.cpu.simd_core import F32X8, I32X8, Floats, const, op
from polykv.fast.cpu.simd_math import multiply_add

TERMS = (0.499999935, 0.166665207, 0.0416683874, 0.00836871013, 0.00138146101)
# ln 2 in two parts, of which the first has few bits, so that n times it is exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.428606765330187e-06
LOWEST = -87.0


@op(Floats, Floats)
def decay_f(b: Any, x: Any) -> Any:
    """e^x for x <= 0; 0 for x < -87 and for -inf, NaN for NaN."""
    lowest = const(F32X8, LOWEST)
    dead = b.fcmp_ordered("<", x, lowest)
    x = b.select(dead, lowest, x)
    # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
    magic = const(F32X8, 12582912.0)
    shifted = multiply_add(b, x, const(F32X8, 1.4426950408889634), magic)
    n = b.fsub(shifted, magic)
    r = multiply_add(b, n, const(F32X8, -LN2_HIGH), x)
    r = multiply_add(b, n, const(F32X8, -LN2_LOW), r)
    p = const(F32X8, TERMS[-1])
    for term in (*TERMS[-2::-1], 1.0, 1.0):
        p = multiply_add(b, p, r, const(F32X8, term))
    # p is in [0.7, 1.5]: adding n to its exponent is the exact product with 2^n.
    scaled = b.add(b.bitcast(p, I32X8), b.shl(b.bitcast(shifted, I32X8), const(I32X8, 23)))
    return b.select(dead, const(F32X8, 0.0), b.bitcast(scaled, F32X8))


@kernel()
def decay(x: Any) -> Any:
    """The same of one number."""
    return lane_f(decay_f(splat_f(x)), np.int32(0))
