"""Vector operations that only the cache needs: codes of 3, 4 and 8 bits, table lookup, the 8 x 8 transpose."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from polykv.fast.cpu.simd_core import (
    F32X8,
    I8,
    I16,
    I16X16,
    I32,
    I32X8,
    Addr,
    Floats,
    Ints,
    Level,
    call,
    const,
    features,
    level,
    op,
    read,
    spread,
)
from polykv.fast.cpu.simd_weights import IQ4

HAS_PERMUTE = level() >= Level.AVX2
# Two registers as one table of 16.
HAS_WIDE = "avx512vl" in features()
_SHIFTS = ir.Constant(I32X8, [0, 3, 6, 9, 12, 15, 18, 21])


def _shuffle(b: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def look_up(b: Any, table: Any, index: Any) -> Any:
    """Emit table[index & 7] for 8 lanes."""
    if HAS_PERMUTE:
        # The instruction reads the low three bits of an index and ignores the rest.
        return call(b, "llvm.x86.avx2.permps", F32X8, table, index)
    level_ = [_shuffle(b, table, table, [i] * 8) for i in range(8)]
    for bit in (1, 2, 4):
        high = b.icmp_unsigned("!=", b.and_(index, const(I32X8, bit)), const(I32X8, 0))
        level_ = [b.select(high, level_[i + 1], level_[i]) for i in range(0, len(level_), 2)]
    return level_[0]


def look_up16(b: Any, low: Any, high: Any, index: Any) -> Any:
    """Emit entry index & 15 of the 16 float32 low, high."""
    if HAS_WIDE:
        return call(b, "llvm.x86.avx512.vpermi2var.ps.256", F32X8, low, index, high)
    upper = b.icmp_unsigned("!=", b.and_(index, const(I32X8, 8)), const(I32X8, 0))
    return b.select(upper, look_up(b, high, index), look_up(b, low, index))


def codes8(b: Any, p: Any) -> Any:
    """Emit the 8 three-bit codes in the 3 bytes at p, in the low bits of their lanes; 4 bytes are read."""
    return b.lshr(spread(b, read(b, p, I32)), _SHIFTS)


@op(Floats, Floats, Addr)
def table8(b: Any, table: Any, p: Any) -> Any:
    """table[c] of the 8 three-bit codes in the 3 bytes at p (4 bytes are read)."""
    return look_up(b, table, codes8(b, p))


@op(Floats, Addr, Ints)
def pick8(b: Any, table: Any, index: Any) -> Any:
    """table[index] of 8 float32 at `table`, for indices 0 .. 7."""
    return look_up(b, read(b, table, F32X8), index)


def transposed(b: Any, rows: list[Any]) -> list[Any]:
    """Emit the transpose of 8 vectors of 8 lanes."""
    pairs = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
    quads = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
    halves = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    a = [_shuffle(b, rows[i], rows[i + 1], m) for i in (0, 2, 4, 6) for m in pairs]
    c = [_shuffle(b, a[i + j], a[i + j + 2], m) for i in (0, 4) for j in (0, 1) for m in quads]
    return [_shuffle(b, c[j], c[j + 4], m) for m in halves for j in range(4)]


@op(types.void, Addr, types.int64, Addr, types.int64)
def transpose8(b: Any, source: Any, source_step: Any, target: Any, target_step: Any) -> None:
    """Store the transpose of the 8 x 8 float32 at `source` to `target`; steps are bytes from row to row."""
    step = ir.IntType(64)
    rows = [read(b, b.add(source, b.mul(source_step, step(i))), F32X8) for i in range(8)]
    for i, row in enumerate(transposed(b, rows)):
        p = b.inttoptr(b.add(target, b.mul(target_step, step(i))), F32X8.as_pointer())
        b.store(row, p).align = 1


def _interleaved(b: Any, p: Any, q: Any) -> Any:
    """Emit 16 bytes: 8 at p and 8 at q in turns."""
    x, y = (read(b, a, ir.VectorType(I8, 8)) for a in (p, q))
    return _shuffle(b, x, y, [i // 2 + 8 * (i % 2) for i in range(16)])


@op(Ints, Addr, Addr)
def pairs8(b: Any, p: Any, q: Any) -> Any:
    """Pairs of int16: 8 int8 at p in the low halves of the lanes, 8 at q in the high halves."""
    return b.bitcast(b.sext(_interleaved(b, p, q), I16X16), I32X8)


def _half_bytes(b: Any, p: Any, q: Any, shift: Any) -> Any:
    """Emit four bits of every byte at p and q in turns."""
    kind = ir.VectorType(I8, 16)
    return b.and_(b.lshr(_interleaved(b, p, q), spread(b, b.trunc(shift, I8), 16)), const(kind, 15))


@op(Ints, Addr, Addr, types.int32)
def pairs4(b: Any, p: Any, q: Any, shift: Any) -> Any:
    """The same of the four bits from `shift` (0 or 4) of every byte, less 8."""
    kind = ir.VectorType(I8, 16)
    return b.bitcast(b.sext(b.sub(_half_bytes(b, p, q, shift), const(kind, 8)), I16X16), I32X8)


@op(Ints, Addr, Addr, types.int32)
def pairs_iq4(b: Any, p: Any, q: Any, shift: Any) -> Any:
    """The same bits replaced by the values of IQ4_NL."""
    index, kind = _half_bytes(b, p, q, shift), ir.VectorType(I8, 16)
    if HAS_PERMUTE:
        found = call(b, "llvm.x86.ssse3.pshuf.b.128", kind, ir.Constant(kind, [v & 255 for v in IQ4]), index)
    else:
        found = const(kind, IQ4[0] & 255)
        for i in range(1, 16):
            found = b.select(b.icmp_unsigned("==", index, const(kind, i)), const(kind, IQ4[i] & 255), found)
    return b.bitcast(b.sext(found, I16X16), I32X8)


@op(Ints, Ints, types.int32, types.int32)
def upper_pairs(b: Any, word: Any, n: Any, bits: Any) -> Any:
    """Fields of `bits` bits from bit n and from bit n + 8 on, moved to bit 4 of the halves of every lane."""
    x, one = b.lshr(word, spread(b, n)), I32(1)
    mask = spread(b, b.sub(b.shl(one, bits), one))
    low, high = b.and_(x, mask), b.and_(b.lshr(x, const(I32X8, 8)), mask)
    return b.or_(b.shl(low, const(I32X8, 4)), b.shl(high, const(I32X8, 20)))


@op(Ints, Addr, Addr, types.int32, Ints, types.int32)
def pairs_upper(b: Any, p: Any, q: Any, shift: Any, upper: Any, middle: Any) -> Any:
    """The same four bits with upper bits in their places, less `middle`."""
    low = b.bitcast(b.zext(_half_bytes(b, p, q, shift), I16X16), I32X8)
    code = b.bitcast(b.or_(low, upper), I16X16)
    return b.bitcast(b.sub(code, spread(b, b.trunc(middle, I16), 16)), I32X8)


@op(Floats, Addr, Ints)
def pick16(b: Any, table: Any, index: Any) -> Any:
    """table[index] of 16 float32 at `table`, for indices 0 .. 15."""
    low, high = read(b, table, F32X8), read(b, b.add(table, ir.IntType(64)(32)), F32X8)
    return look_up16(b, low, high, index)


@op(Floats, Floats)
def hadamard8(b: Any, x: Any) -> Any:
    """The first three stages (distances 1, 2, 4) of a Walsh-Hadamard transform on 8 lanes."""
    for h in (1, 2, 4):
        sign = ir.Constant(F32X8, [-1.0 if lane & h else 1.0 for lane in range(8)])
        x = b.fadd(_shuffle(b, x, x, [lane ^ h for lane in range(8)]), b.fmul(x, sign))
    return x
