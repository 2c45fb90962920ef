"""Vector operations of encoders: 8 groups of values side by side, one in each lane.

A tile is float32 [g, 8]: vector j holds value j of 8 groups. So every sum over a group is one chain in the order of its
values, whose rounding stored bytes depend on, and eight such chains run at once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from polykv.fast.cpu.lift_simd import HAS_PERMUTE, transposed
from polykv.fast.cpu.simd import fold
from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I8,
    I16,
    I32,
    I32X8,
    I64,
    Addr,
    Floats,
    Ints,
    at,
    call,
    const,
    op,
    read,
    spread,
    types,
    write,
)

# Below the smallest normal float32 a reciprocal may be infinite; such a scale is stored as zero anyway.
TINY = 1.1754943508222875e-38


def _steps(b: Any, p: Any, step: Any, count: int) -> list[Any]:
    return [b.add(p, b.mul(step, I64(i))) for i in range(count)]


@op(types.void, Addr, types.int64, Addr)
def columns8(b: Any, rows: Any, offset: Any, out: Any) -> None:
    """8 float32, `offset` bytes from the int64 addresses at `rows`, to 8 vectors at `out`: lane i from row i."""
    starts = [read(b, p, I64) for p in _steps(b, rows, I64(8), 8)]
    vectors = transposed(b, [read(b, b.add(p, offset), F32X8) for p in starts])
    for p, v in zip(_steps(b, out, I64(32), 8), vectors, strict=True):
        write(b, p, v)


def _stages(count: int) -> Any:
    def stages(b: Any, p: Any, step: Any) -> None:
        places = _steps(b, p, step, count)
        x, h = [read(b, q, F32X8) for q in places], 1
        while h < count:
            for i in range(count):
                if not i & h:
                    x[i], x[i + h] = b.fadd(x[i], x[i + h]), b.fsub(x[i], x[i + h])
            h *= 2
        for q, v in zip(places, x, strict=True):
            write(b, q, v)

    stages.__name__ = f"stages{count}"
    stages.__doc__ = f"Butterflies (a, b) -> (a + b, a - b) of {count} vectors at p, `step` bytes apart, near first."
    return op(types.void, Addr, types.int64)(stages)


stages2, stages4, stages8 = (_stages(n) for n in (2, 4, 8))


@op(Floats, Floats, Floats, Floats)
def grow_peak(b: Any, peak: Any, size: Any, x: Any) -> Any:
    """x where |x| is larger than `size`, else peak."""
    return b.select(b.fcmp_ordered(">", call(b, "llvm.fabs.v8f32", F32X8, x), size), x, peak)


@op(Floats, Floats)
def inverse_f(b: Any, d: Any) -> Any:
    """1 / d, and 0 for what float32 cannot invert."""
    one = const(F32X8, 1.0)
    safe = b.fcmp_ordered(">=", call(b, "llvm.fabs.v8f32", F32X8, d), const(F32X8, TINY))
    return b.select(safe, b.fdiv(one, b.select(safe, d, one)), const(F32X8, 0.0))


@op(Floats, Floats, Floats, types.float32, Floats)
def quotient_f(b: Any, x: Any, y: Any, limit: Any, other: Any) -> Any:
    """x / y where y is above the limit, else `other`."""
    safe = b.fcmp_ordered(">", y, spread(b, limit))
    return b.select(safe, b.fdiv(x, b.select(safe, y, const(F32X8, 1.0))), other)


@op(Floats, Floats)
def root_f(b: Any, x: Any) -> Any:
    """The square root."""
    return call(b, "llvm.sqrt.v8f32", F32X8, x)


@op(Ints, Floats, Floats)
def not_less(b: Any, x: Any, y: Any) -> Any:
    """1 where x >= y, else 0."""
    return b.zext(b.fcmp_ordered(">=", x, y), I32X8)


@op(Ints, Floats, types.float32)
def cut_i(b: Any, x: Any, high: Any) -> Any:
    """x within 0 .. high, without its fraction; 0 for NaN."""
    x = b.select(b.fcmp_ordered(">", x, const(F32X8, 0.0)), x, const(F32X8, 0.0))
    high = spread(b, high)
    return b.fptosi(b.select(b.fcmp_ordered("<", x, high), x, high), I32X8)


@op(Ints, Floats, types.float32)
def nearest_i(b: Any, x: Any, limit: Any) -> Any:
    """The integer nearest to x, halves away from zero, within -limit .. limit; -limit for NaN."""
    high = spread(b, limit)
    low = b.fneg(high)
    x = b.select(b.fcmp_ordered(">", x, low), x, low)
    x = b.select(b.fcmp_ordered("<", x, high), x, high)
    # The float below a half: with a half itself, 0.49999997 would round up to 1.
    half = call(b, "llvm.copysign.v8f32", F32X8, const(F32X8, 0.5 - 2.0**-25), x)
    return b.fptosi(b.fadd(x, half), I32X8)


def _rank(b: Any, x: Any, first: Any, count: int, step: int) -> Any:
    rank = const(I32X8, 0)
    for k in range(count):
        limit = spread(b, read(b, b.add(first, I64(4 * step * k)), F32))
        rank = b.sub(rank, b.sext(b.fcmp_unordered(">=", x, limit), I32X8))
    return rank


def _ranking(count: int) -> Any:
    def rank(b: Any, x: Any, thresholds: Any) -> Any:
        return _rank(b, x, thresholds, count, 1)

    rank.__name__ = f"rank{count}"
    rank.__doc__ = f"How many of the {count} float32 at `thresholds` a lane is not below."
    return op(Ints, Floats, Addr)(rank)


rank3, rank7, rank14, rank15 = (_ranking(n) for n in (3, 7, 14, 15))


@op(Ints, Floats, Addr)
def rank255(b: Any, x: Any, thresholds: Any) -> Any:
    """The same of 255 thresholds: every sixteenth first, then by halving."""
    rank = b.shl(_rank(b, x, b.add(thresholds, I64(4 * 15)), 15, 16), const(I32X8, 4))
    for half in (8, 4, 2, 1):
        limit = gathered(b, b.add(thresholds, I64(4 * (half - 1))), rank)
        above = b.zext(b.fcmp_unordered(">=", x, limit), I32X8)
        rank = b.add(rank, b.mul(above, const(I32X8, half)))
    return rank


def gathered(b: Any, table: Any, index: Any) -> Any:
    """Emit the float32 at table[index], lane by lane."""
    if HAS_PERMUTE:
        everything = ir.Constant(I32X8, ir.Undefined), const(I32X8, -1)
        mask = b.bitcast(everything[1], F32X8)
        base = at(b, table, I8)
        return call(b, "llvm.x86.avx2.gather.d.ps.256", F32X8, const(F32X8, 0.0), base, index, mask, I8(4))
    out = ir.Constant(F32X8, ir.Undefined)
    for i in range(8):
        k = b.zext(b.extract_element(index, I32(i)), I64)
        out = b.insert_element(out, read(b, b.add(table, b.shl(k, I64(2))), F32), I32(i))
    return out


@op(Floats, Addr, Ints)
def pick_f(b: Any, table: Any, index: Any) -> Any:
    """table[index] of the float32 at `table`."""
    return gathered(b, table, index)


def _packing(bits: int) -> Any:
    shifts = ir.Constant(I32X8, [bits * i for i in range(8)])

    def pack(b: Any, codes: Any) -> Any:
        return fold(b, b.shl(codes, shifts), lambda b, x, y: b.or_(x, y))

    pack.__name__ = f"pack{bits}"
    pack.__doc__ = f"8 codes of {bits} bits as one number, the first lowest."
    return op(types.int32, Ints)(pack)


pack1, pack2, pack3, pack4 = (_packing(bits) for bits in (1, 2, 3, 4))


@op(types.void, Addr, types.int64, Ints, types.int64)
def put8(b: Any, p: Any, step: Any, words: Any, size: Any) -> None:
    """The lowest 2, 3 or 4 bytes of the lanes to 8 places, `step` bytes apart."""
    places = _steps(b, p, step, 8)
    lanes = [b.extract_element(words, I32(i)) for i in range(8)]
    with b.if_else(b.icmp_signed("==", size, I64(4))) as (whole, part):
        with whole:
            for q, word in zip(places, lanes, strict=True):
                write(b, q, word)
        with part:
            for q, word in zip(places, lanes, strict=True):
                write(b, q, b.trunc(word, I16))
            with b.if_then(b.icmp_signed("==", size, I64(3))):
                for q, word in zip(places, lanes, strict=True):
                    write(b, b.add(q, I64(2)), b.trunc(b.lshr(word, I32(16)), I8))


@op(types.void, Addr, types.int64, Ints)
def put_low(b: Any, p: Any, step: Any, words: Any) -> None:
    """The lowest byte of the lanes to 8 places, `step` bytes apart."""
    for i, q in enumerate(_steps(b, p, step, 8)):
        write(b, q, b.trunc(b.extract_element(words, I32(i)), I8))
