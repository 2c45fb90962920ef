"""Eight matrix rows at once: transposing gathers, bit fields, integer dot products.

The unit of all weight kernels is a tile of 8 consecutive rows: lane r of a vector belongs to row r. Packed bytes of a
row lie `pitch` bytes after those of the row before, so 16 bytes of each are eight loads and a transposition, after
which every mask, shift and conversion serves eight rows, and a dot product needs no sum across lanes.

Codes of a tile are stored 4 columns to a lane: vector i holds columns 4i .. 4i + 3 as bytes. `dots` multiplies 32 (or
16) columns of it with one or four rows of int8 activations, exactly:

    VNNI      unsigned by signed bytes, four products added to an int32 (vpdpbusd). 8-bit codes are stored plus 128.
    AVX2      unsigned by signed, pairs added in int16 (vpmaddubsw), then to int32. Two such pairs stay below 2^15 for
              codes up to 63; 8-bit codes are signed and take |w| and the activations with the sign of w.
    PORTABLE  signed bytes, widened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.simd_core import (
    I8X32,
    I16,
    I16X16,
    I32,
    I32X8,
    I64,
    Addr,
    Ints,
    Level,
    call,
    const,
    level,
    op,
    read,
    spread,
    types,
    write,
)

LEVEL = level()
Quad = types.UniTuple(Ints, 4)
# 8-bit codes are stored as code + BIAS.
BIAS = 128 if LEVEL == Level.VNNI else 0
# The values of the non-linear 4-bit types (docs/FORMATS.md).
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def shuffle(b: Any, x: Any, y: Any, lanes: Sequence[int]) -> Any:
    """Emit a fixed choice of lanes of x and y."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def row(b: Any, p: Any, pitch: Any, r: int) -> Any:
    """Emit the address of row r."""
    return b.add(p, b.mul(pitch, I64(r)))


@op(Quad, Addr, types.int64)
def gather16(b: Any, p: Any, pitch: Any) -> Any:
    """16 bytes of each of 8 rows: vector i holds bytes 4i .. 4i + 3."""
    rows = [read(b, row(b, p, pitch, r), ir.VectorType(I32, 4)) for r in range(8)]
    y = [shuffle(b, rows[r], rows[r + 4], range(8)) for r in range(4)]
    low, high = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
    t = [shuffle(b, y[r], y[r + 1], lanes) for r in (0, 2) for lanes in (low, high)]
    first, second = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
    return [shuffle(b, t[i], t[i + 2], lanes) for i in (0, 1) for lanes in (first, second)]


def _gather(b: Any, p: Any, pitch: Any, kind: ir.Type) -> Any:
    v = ir.Constant(ir.VectorType(kind, 8), ir.Undefined)
    for r in range(8):
        v = b.insert_element(v, read(b, row(b, p, pitch, r), kind), I32(r))
    return v


@op(Ints, Addr, types.int64)
def gather4(b: Any, p: Any, pitch: Any) -> Any:
    """4 bytes of each of 8 rows."""
    return _gather(b, p, pitch, I32)


@op(Ints, Addr, types.int64)
def gather2(b: Any, p: Any, pitch: Any) -> Any:
    """2 bytes of each of 8 rows, upper halves zero."""
    return b.zext(_gather(b, p, pitch, I16), I32X8)


# -- on quads: four vectors at a time, the 16 bytes of a gather ----------------------------------------------------


@op(Quad, Quad, types.int32, types.int32)
def field4(b: Any, q: Any, n: Any, bits: Any) -> Any:
    """(x >> n) & bits in every lane."""
    shift, mask = spread(b, n), spread(b, bits)
    return [b.and_(b.lshr(x, shift), mask) for x in q]


@op(Quad, Quad, Quad, types.int32)
def join4(b: Any, q: Any, top: Any, n: Any) -> Any:
    """q | top << n in every lane."""
    shift = spread(b, n)
    return [b.or_(x, b.shl(y, shift)) for x, y in zip(q, top, strict=True)]


@op(types.void, Addr, Quad)
def store4(b: Any, p: Any, q: Any) -> None:
    """Store 128 bytes at p."""
    for i, x in enumerate(q):
        write(b, b.add(p, I64(32 * i)), x)


@op(Quad, Addr)
def load4(b: Any, p: Any) -> Any:
    """128 bytes at p."""
    return [read(b, b.add(p, I64(32 * i)), I32X8) for i in range(4)]


@op(Quad, Quad)
def biased4(b: Any, q: Any) -> Any:
    """Bytes plus BIAS."""
    return [b.xor(x, const(I32X8, -0x7F7F7F80)) for x in q] if BIAS else q


@op(types.UniTuple(Ints, 8), Ints)
def fifth_bits(b: Any, v: Any) -> Any:
    """Bits 4i .. 4i + 3 of every lane as bytes 0 or 1, for i = 0 .. 7."""
    raw, parts = b.bitcast(v, I8X32), []
    for i in range(8):
        spot = shuffle(b, raw, raw, [4 * (j // 4) + i // 2 for j in range(32)])
        mask = ir.Constant(I8X32, [1 << (4 * (i % 2) + j % 4) for j in range(32)])
        on = b.icmp_unsigned("==", b.and_(spot, mask), mask)
        parts.append(b.bitcast(b.zext(on, I8X32), I32X8))
    return parts


@op(Quad, Quad)
def iq4_codes(b: Any, q: Any) -> Any:
    """Bytes 0 .. 15 replaced by the values of the IQ4 types plus BIAS."""
    return [_lookup(b, b.bitcast(x, I8X32), [(t + BIAS) & 255 for t in IQ4]) for x in q]


def _lookup(b: Any, raw: Any, table: list[int]) -> Any:
    if LEVEL >= Level.AVX2:
        found = call(b, "llvm.x86.avx2.pshuf.b", I8X32, ir.Constant(I8X32, table * 2), raw)
    else:
        found = const(I8X32, table[0])
        for k in range(1, 16):
            found = b.select(b.icmp_unsigned("==", raw, const(I8X32, k)), const(I8X32, table[k]), found)
    return b.bitcast(found, I32X8)


# -- integer dot products ----------------------------------------------------------------------------------------


def _step(b: Any, sums: list[Any], w: list[Any], x: list[list[Any]], wide: bool) -> list[Any]:
    """Add the products of two vectors of codes with x[r] to sums[r]."""
    if LEVEL == Level.VNNI:
        for i in (0, 1):
            lanes, acts = b.bitcast(w[i], I32X8), [b.bitcast(v[i], I32X8) for v in x]
            sums = [
                call(b, "llvm.x86.avx512.vpdpbusd.256", I32X8, s, lanes, a) for s, a in zip(sums, acts, strict=True)
            ]
        return sums
    if LEVEL == Level.AVX2:
        sizes = [call(b, "llvm.abs.v32i8", I8X32, v, ir.IntType(1)(0)) for v in w] if wide else w
        return [b.add(s, _avx2(b, sizes, w, v, wide)) for s, v in zip(sums, x, strict=True)]
    return [b.add(s, b.add(_wide(b, w[0], v[0]), _wide(b, w[1], v[1]))) for s, v in zip(sums, x, strict=True)]


def _avx2(b: Any, sizes: list[Any], w: list[Any], x: list[Any], wide: bool) -> Any:
    ones, pairs = const(I16X16, 1), []
    for i in (0, 1):
        v = call(b, "llvm.x86.avx2.psign.b", I8X32, x[i], w[i]) if wide else x[i]
        pairs.append(call(b, "llvm.x86.avx2.pmadd.ub.sw", I16X16, sizes[i], v))
    if not wide:
        return call(b, "llvm.x86.avx2.pmadd.wd", I32X8, b.add(*pairs), ones)
    return b.add(*[call(b, "llvm.x86.avx2.pmadd.wd", I32X8, p, ones) for p in pairs])


def _wide(b: Any, w: Any, x: Any) -> Any:
    """Four products of signed bytes per lane, generic."""
    kind = ir.VectorType(I16, 32)
    products = b.mul(b.sext(w, kind), b.sext(x, kind))
    parts = [b.sext(shuffle(b, products, products, range(k, 32, 4)), I32X8) for k in range(4)]
    return b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))


def _dots(rows: int, columns: int, wide: bool) -> Any:
    def build(b: Any, w: Any, x: Any, pitch: Any, *start: Any) -> Any:
        sums = [spread(b, s) for s in start]
        for i in range(0, columns // 4, 2):
            codes = [read(b, b.add(w, I64(32 * (i + k))), I8X32) for k in (0, 1)]
            acts = [
                [
                    b.bitcast(spread(b, read(b, b.add(row(b, x, pitch, r), I64(4 * (i + k))), I32)), I8X32)
                    for k in (0, 1)
                ]
                for r in range(rows)
            ]
            sums = _step(b, sums, codes, acts, wide)
        return sums

    def one(b: Any, w: Any, x: Any, s0: Any) -> Any:
        return build(b, w, x, I64(0), s0)[0]

    def four(b: Any, w: Any, x: Any, pitch: Any, s0: Any, s1: Any, s2: Any, s3: Any) -> Any:
        return build(b, w, x, pitch, s0, s1, s2, s3)

    each = types.int32
    made = four if rows == 4 else one
    made.__name__ = f"dots_{rows}x{columns}{'w' if wide else ''}"
    made.__doc__ = "Start values plus the products of `columns` tile columns at w with `rows` rows of int8 at x."
    return (
        op(Quad, Addr, Addr, types.int64, each, each, each, each)(four)
        if rows == 4
        else op(Ints, Addr, Addr, each)(one)
    )


dots1, dots1_half, dots1_wide = _dots(1, 32, False), _dots(1, 16, False), _dots(1, 32, True)
dots4, dots4_half, dots4_wide = _dots(4, 32, False), _dots(4, 16, False), _dots(4, 32, True)


def _dot(wide: bool, sixteenfold: bool) -> Any:
    def dot(b: Any, low: Any, high: Any, x: Any, start: Any) -> Any:
        # Two sums: in one, every step would wait for the one before.
        sums = [spread(b, start), const(I32X8, 0)]
        for k, quad in enumerate((low, high)):
            for i in (0, 2):
                at = b.add(x, I64(16 * k + 4 * i))
                acts = [b.bitcast(spread(b, read(b, b.add(at, I64(4 * j)), I32)), I8X32) for j in (0, 1)]
                sums[k] = _step(b, [sums[k]], [b.bitcast(q, I8X32) for q in quad[i : i + 2]], [acts], wide)[0]
        return b.add(sums[0], b.ashr(sums[1], const(I32X8, 4)) if sixteenfold else sums[1])

    dot.__doc__ = "Start value plus the products of 32 tile columns, codes of 16 and 16, with a row of int8 at x."
    return op(Ints, Quad, Quad, Addr, types.int32)(dot)


# Upper nibbles may stay where they are, 16 times their value, where that fits into what is multiplied; one shift of the
# sum, which is exact, then does for four of the codes.
IN_PLACE = LEVEL == Level.VNNI
dot, dot_wide, dot_nibbles = _dot(False, False), _dot(True, False), _dot(False, IN_PLACE)


@op(Quad, Quad)
def upper4(b: Any, q: Any) -> Any:
    """The upper nibble of every byte as `dot_nibbles` takes it."""
    if IN_PLACE:
        return [b.and_(x, const(I32X8, -0x0F0F0F10)) for x in q]
    return [b.and_(b.lshr(x, const(I32X8, 4)), const(I32X8, 0x0F0F0F0F)) for x in q]
