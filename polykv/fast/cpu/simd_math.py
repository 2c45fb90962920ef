"""Arithmetic on the vectors of simd.py: integers, floats, fp16, and exp and tanh.

exp(x) = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2; e^r is a polynomial of degree 6, good to 1e-8 before
rounding (coefficients: interpolation of (e^r - 1 - r) / r^2 at Chebyshev nodes).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from polykv.fast.cpu.simd_core import (
    F16,
    F32,
    F32X8,
    I16,
    I32,
    I32X8,
    Floats,
    Ints,
    call,
    const,
    features,
    op,
    spread,
    types,
)

HAS_FMA = bool({"fma", "aarch64", "arm64"} & features())
HAS_F16 = bool({"f16c", "aarch64", "arm64"} & features())
EXP_TERMS = (0.5, 0.16666577, 0.0416665546, 0.00836317905, 0.00139261836)

# -- integers, lane by lane --------------------------------------------------------------------------------------


@op(Ints, Ints, Ints)
def add_i(b: Any, x: Any, y: Any) -> Any:
    """x + y."""
    return b.add(x, y)


@op(Ints, Ints, Ints)
def sub_i(b: Any, x: Any, y: Any) -> Any:
    """x - y."""
    return b.sub(x, y)


@op(Ints, Ints, Ints)
def and_i(b: Any, x: Any, y: Any) -> Any:
    """Bitwise and."""
    return b.and_(x, y)


@op(Ints, Ints, Ints)
def or_i(b: Any, x: Any, y: Any) -> Any:
    """Bitwise or."""
    return b.or_(x, y)


@op(Ints, Ints, types.int32)
def shl(b: Any, x: Any, n: Any) -> Any:
    """x << n."""
    return b.shl(x, spread(b, n))


@op(Ints, Ints, Ints, types.int32)
def join_i(b: Any, x: Any, y: Any, n: Any) -> Any:
    """x | y << n."""
    return b.or_(x, b.shl(y, spread(b, n)))


@op(Ints, Ints, types.int32, types.int32)
def field(b: Any, x: Any, n: Any, bits: Any) -> Any:
    """(x >> n) & bits: a bit field of every lane."""
    return b.and_(b.lshr(x, spread(b, n)), spread(b, bits))


@op(Ints, Ints, types.int32)
def signed_byte(b: Any, x: Any, k: Any) -> Any:
    """Byte k of every lane as a signed number."""
    up = b.shl(x, spread(b, b.sub(I32(24), b.shl(k, I32(3)))))
    return b.ashr(up, const(I32X8, 24))


# -- floats, lane by lane ----------------------------------------------------------------------------------------


def multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit x * y + z, rounded once where the processor can."""
    if HAS_FMA:
        return call(b, "llvm.fma.v8f32", F32X8, x, y, z)
    return b.fadd(b.fmul(x, y), z)


@op(Floats, Floats, Floats, Floats)
def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z."""
    return multiply_add(b, x, y, z)


@op(Floats, Floats, Floats)
def add_f(b: Any, x: Any, y: Any) -> Any:
    """x + y."""
    return b.fadd(x, y)


@op(Floats, Floats, Floats)
def sub_f(b: Any, x: Any, y: Any) -> Any:
    """x - y."""
    return b.fsub(x, y)


@op(Floats, Floats, Floats)
def mul_f(b: Any, x: Any, y: Any) -> Any:
    """x * y."""
    return b.fmul(x, y)


@op(Floats, Floats, Floats)
def div_f(b: Any, x: Any, y: Any) -> Any:
    """x / y."""
    return b.fdiv(x, y)


@op(Floats, Floats, Floats)
def max_f(b: Any, x: Any, y: Any) -> Any:
    """The larger; y when either is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@op(Floats, Floats, Floats)
def min_f(b: Any, x: Any, y: Any) -> Any:
    """The smaller; y when either is NaN."""
    return b.select(b.fcmp_ordered("<", x, y), x, y)


@op(Floats, Floats)
def abs_f(b: Any, x: Any) -> Any:
    """|x|."""
    return call(b, "llvm.fabs.v8f32", F32X8, x)


@op(Floats, Floats, types.float32)
def clamp_f(b: Any, x: Any, limit: Any) -> Any:
    """x within -limit .. limit; NaN stays."""
    high = spread(b, limit)
    low = b.fneg(high)
    x = b.select(b.fcmp_ordered("<", x, low), low, x)
    return b.select(b.fcmp_ordered(">", x, high), high, x)


@op(Floats, Ints)
def to_f(b: Any, x: Any) -> Any:
    """int32 to float32."""
    return b.sitofp(x, F32X8)


# int32 begins at -LIMIT and ends before LIMIT.
LIMIT = 2.0**31


@op(Ints, Floats)
def round_i(b: Any, x: Any) -> Any:
    """Nearest integer, halves away from zero; out of range saturates, NaN gives 0."""
    whole = call(b, "llvm.round.v8f32", F32X8, x)
    # Not llvm.fptosi.sat, which becomes a long chain of instructions for every lane.
    low, high = const(F32X8, -LIMIT), const(F32X8, LIMIT)
    inside = b.and_(b.fcmp_ordered(">=", whole, low), b.fcmp_ordered("<", whole, high))
    found = b.fptosi(b.select(inside, whole, const(F32X8, 0.0)), I32X8)
    beyond = b.select(b.fcmp_ordered(">=", whole, high), const(I32X8, 2**31 - 1), found)
    return b.select(b.fcmp_ordered("<", whole, low), const(I32X8, -(2**31)), beyond)


@op(Ints, Floats)
def floats_i(b: Any, x: Any) -> Any:
    """The bits of float32."""
    return b.bitcast(x, I32X8)


@op(Floats, Ints)
def bits_f(b: Any, x: Any) -> Any:
    """The same bits read as float32."""
    return b.bitcast(x, F32X8)


# -- fp16 --------------------------------------------------------------------------------------------------------


def widen(b: Any, x: Any) -> Any:
    """Emit float32 lanes of fp16 bits in the low halves of int32 lanes (upper halves are ignored)."""
    if HAS_F16:
        return b.fpext(b.bitcast(b.trunc(x, ir.VectorType(I16, 8)), ir.VectorType(F16, 8)), F32X8)
    size = b.and_(x, const(I32X8, 0x7FFF))
    # The exponent moves to its place and is corrected by a product, which also normalizes subnormals.
    y = b.fmul(b.bitcast(b.shl(size, const(I32X8, 13)), F32X8), const(F32X8, 2.0**112))
    special = b.icmp_signed(">=", size, const(I32X8, 0x7C00))
    y = b.or_(b.bitcast(y, I32X8), b.select(special, const(I32X8, 0x7F800000), const(I32X8, 0)))
    return b.bitcast(b.or_(y, b.shl(b.and_(x, const(I32X8, 0x8000)), const(I32X8, 16))), F32X8)


def narrow(b: Any, x: Any) -> Any:
    """Emit fp16 bits in int32 lanes of float32 lanes, to nearest even."""
    if HAS_F16:
        return b.zext(b.bitcast(b.fptrunc(x, ir.VectorType(F16, 8)), ir.VectorType(I16, 8)), I32X8)
    raw = b.bitcast(x, I32X8)
    size = b.and_(raw, const(I32X8, 0x7FFFFFFF))
    odd = b.and_(b.lshr(size, const(I32X8, 13)), const(I32X8, 1))
    normal = b.lshr(b.add(b.sub(size, const(I32X8, 0x38000000 - 0xFFF)), odd), const(I32X8, 13))
    # Below 2^-14 the sum with 0.5 rounds to multiples of 2^-24, the steps of fp16 subnormals.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(size, F32X8), const(F32X8, 0.5)), I32X8), const(I32X8, 0x3F000000))
    y = b.select(b.icmp_signed("<", size, const(I32X8, 0x38800000)), small, normal)
    y = b.select(b.icmp_signed(">=", size, const(I32X8, 0x477FF000)), const(I32X8, 0x7C00), y)
    y = b.select(b.icmp_signed(">", size, const(I32X8, 0x7F800000)), const(I32X8, 0x7E00), y)
    return b.or_(y, b.and_(b.lshr(raw, const(I32X8, 16)), const(I32X8, 0x8000)))


@op(Floats, Ints)
def low_half(b: Any, x: Any) -> Any:
    """float32 of the fp16 in the low 16 bits of each lane."""
    return widen(b, x)


@op(Floats, Ints)
def high_half(b: Any, x: Any) -> Any:
    """float32 of the fp16 in the high 16 bits of each lane."""
    return widen(b, b.lshr(x, const(I32X8, 16)))


@op(Ints, Floats)
def to_half(b: Any, x: Any) -> Any:
    """fp16 bits of each lane, rounded to nearest even, in the low 16 bits."""
    return narrow(b, x)


@op(types.float32, types.int32)
def half_f(b: Any, x: Any) -> Any:
    """float32 of the fp16 bits x."""
    if HAS_F16:
        return b.fpext(b.bitcast(b.trunc(x, I16), F16), F32)
    return b.extract_element(widen(b, spread(b, x)), I32(0))


@op(types.int32, types.float32)
def half_i(b: Any, x: Any) -> Any:
    """fp16 bits of x, rounded to nearest even."""
    if HAS_F16:
        return b.zext(b.bitcast(b.fptrunc(x, F16), I16), I32)
    return b.extract_element(narrow(b, spread(b, x)), I32(0))


# -- transcendental ----------------------------------------------------------------------------------------------


def exponential(b: Any, x: Any) -> Any:
    """Emit e^x."""
    low, high = const(F32X8, -104.0), const(F32X8, 89.0)
    x = b.select(b.fcmp_ordered("<", x, low), low, x)
    x = b.select(b.fcmp_ordered(">", x, high), high, x)
    # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
    magic = const(F32X8, 12582912.0)
    shifted = multiply_add(b, x, const(F32X8, 1.4426950408889634), magic)
    n = b.fsub(shifted, magic)
    r = multiply_add(b, n, const(F32X8, -0.693145751953125), x)
    r = multiply_add(b, n, const(F32X8, -1.428606765330187e-06), r)
    p = const(F32X8, EXP_TERMS[-1])
    for term in EXP_TERMS[-2::-1]:
        p = multiply_add(b, p, r, const(F32X8, term))
    one = const(F32X8, 1.0)
    p = b.fadd(multiply_add(b, p, b.fmul(r, r), r), one)
    # Two factors, because 2^n alone can leave the exponent range where the result does not.
    whole = b.sub(b.bitcast(shifted, I32X8), b.bitcast(magic, I32X8))
    first = b.ashr(whole, const(I32X8, 1))
    for part in (first, b.sub(whole, first)):
        p = b.fmul(p, b.bitcast(b.shl(b.add(part, const(I32X8, 127)), const(I32X8, 23)), F32X8))
    return p


@op(Floats, Floats)
def exp_f(b: Any, x: Any) -> Any:
    """e^x, relative error under 2e-7; exactly 0 for -inf, inf for +inf."""
    return exponential(b, x)


@op(Floats, Floats)
def sigmoid_f(b: Any, x: Any) -> Any:
    """1 / (1 + e^-x)."""
    one = const(F32X8, 1.0)
    return b.fdiv(one, b.fadd(one, exponential(b, b.fneg(x))))
