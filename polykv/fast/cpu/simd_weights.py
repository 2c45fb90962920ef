"""Eight matrix rows at once: transposing gathers, bit fields, integer dot products.

The unit of all weight kernels is a tile of 8 consecutive rows: lane r of a vector belongs to row r. Packed bytes of a
row lie `pitch` bytes after those of the row before, so 16 bytes of each are eight loads and a transposition, after
which every mask, shift and conversion serves eight rows, and a dot product needs no sum across lanes.

Codes of a tile are stored 4 columns to a lane: vector i holds columns 4i .. 4i + 3 as bytes. `dots` multiplies 32 (or
16) columns of it with one or four rows of int8 activations, exactly:

    VNNI      unsigned by signed bytes, four products added to an int32 (vpdpbusd). 8-bit codes are stored plus 128.
    AVX2      unsigned by signed, pairs added in int16 (vpmaddubsw), then to int32. Eight such pairs stay below 2^15 for
              codes up to 15, four for codes up to 31, two for codes up to 63 (activations are -127 .. 127); 8-bit
              codes are signed and take |w| and the activations with the sign of w.
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
    features,
    level,
    op,
    read,
    spread,
    types,
    write,
)

LEVEL = level()
# Whether there are registers for the sums of eight rows of activations; with 16 there are for those of four.
EIGHT_ROWS = "avx512vl" in features()
Quad = types.UniTuple(Ints, 4)
# 8-bit codes are stored as code + BIAS.
BIAS = 128 if LEVEL == Level.VNNI else 0
# Of products with them, no two pairs fit into int16 (see `_dots`).
SIGNED = 1
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


def _add_products(b: Any, sums: list[Any], count: int, w: Any, x: Any, fit: int) -> list[Any]:
    """Add the products of `count` vectors of codes w(k) with x(r, k) to sums[r]; `fit` as in `_dots`.

    w and x emit the loads where they are needed: there are fewer registers than vectors.
    """
    rows = range(len(sums))
    if LEVEL == Level.AVX2:
        for k in range(0, count, fit):
            sums = _avx2(b, sums, range(k, min(k + fit, count)), w, x, fit == SIGNED)
            # Four vectors of codes fit into the registers anyway.
            sums = _in_order(b, sums) if count > 4 and len(sums) > 1 else sums
        return sums
    for k in range(count):
        codes = w(k)
        if LEVEL == Level.VNNI:
            lanes = b.bitcast(codes, I32X8)
            acts = [b.bitcast(x(r, k), I32X8) for r in rows]
            sums = [call(b, "llvm.x86.avx512.vpdpbusd.256", I32X8, sums[r], lanes, acts[r]) for r in rows]
        else:
            sums = [b.add(sums[r], _wide(b, codes, x(r, k))) for r in rows]
    return sums


def _avx2(b: Any, sums: list[Any], vectors: Sequence[int], w: Any, x: Any, signed: bool) -> list[Any]:
    """Products that fit into int16 together."""
    pairs: list[Any] = [None] * len(sums)
    for k in vectors:
        codes = w(k)
        size = call(b, "llvm.abs.v32i8", I8X32, codes, ir.IntType(1)(0)) if signed else codes
        for r, before in enumerate(pairs):
            acts = call(b, "llvm.x86.avx2.psign.b", I8X32, x(r, k), codes) if signed else x(r, k)
            found = call(b, "llvm.x86.avx2.pmadd.ub.sw", I16X16, size, acts)
            pairs[r] = found if before is None else b.add(before, found)
    ones = const(I16X16, 1)
    return [b.add(s, call(b, "llvm.x86.avx2.pmadd.wd", I32X8, p, ones)) for s, p in zip(sums, pairs, strict=True)]


def _in_order(b: Any, values: list[Any]) -> list[Any]:
    """The same values, which the compiler has to have at this point, all of them, before it goes on.

    It would compute the sums of one row after the other, for which it must hold all codes, and lacks registers.
    """
    kinds = [v.type for v in values]
    outs, ins = ",".join("=x" for _ in kinds), ",".join(str(i) for i in range(len(kinds)))
    nothing = ir.InlineAsm(ir.FunctionType(ir.LiteralStructType(kinds), kinds), "", f"{outs},{ins}", side_effect=True)
    made = b.call(nothing, values)
    return [b.extract_value(made, i) for i in range(len(kinds))]


def _wide(b: Any, w: Any, x: Any) -> Any:
    """Four products of signed bytes per lane, generic."""
    kind = ir.VectorType(I16, 32)
    products = b.mul(b.sext(w, kind), b.sext(x, kind))
    parts = [b.sext(shuffle(b, products, products, range(k, 32, 4)), I32X8) for k in range(4)]
    return b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))


def _spread4(b: Any, x: Any, k: int) -> Any:
    """Emit 4 int8, those after 4k of the row at x, in all lanes."""
    return b.bitcast(spread(b, read(b, b.add(x, I64(4 * k)), I32)), I8X32)


def _dots(rows: int, columns: int, fit: int) -> Any:
    """Products with `rows` rows; `fit` vectors of them fit into int16, one with SIGNED codes."""

    def dots(b: Any, w: Any, x: Any, pitch: Any, zero: Any, n: Any) -> Any:
        at = [row(b, x, pitch, r) for r in range(rows)]
        minus = b.neg(b.trunc(zero, I32))
        return _add_products(
            b,
            [spread(b, b.mul(minus, read(b, b.add(p, n), I32))) for p in at],
            columns // 4,
            lambda k: read(b, b.add(w, I64(32 * k)), I8X32),
            lambda r, k: _spread4(b, at[r], k),
            fit,
        )

    dots.__name__ = f"dots_{rows}x{columns}_{fit}"
    dots.__doc__ = """Products of `columns` tile columns at w with `rows` rows of int8 at x, `pitch` bytes apart.

    Minus `zero` times the int32 that is n bytes from the row's columns.
    """
    return op(types.UniTuple(Ints, rows), Addr, Addr, types.int64, types.int64, types.int64)(dots)


# With 1, 4 and 8 rows. Codes of up to 4 bits; of 5; of 8.
dots_4, dots_5, dots_8 = ([_dots(rows, 32, fit) for rows in (1, 4, 8)] for fit in (8, 4, SIGNED))
# Halves of 16 columns: codes of up to 4 bits, and of 6.
half_4, half_6 = ([_dots(rows, 16, fit) for rows in (1, 4, 8)] for fit in (4, 2))


def add_row(b: Any, to: Any, codes: Sequence[Any], x: Any, first: int, fit: int) -> Any:
    """Emit `to` plus the products of tile vectors, which begin with vector `first`, with a row of int8 at x; `fit` as
    in `_dots`."""
    return _add_products(b, [to], len(codes), lambda i: codes[i], lambda _, i: _spread4(b, x, first + i), fit)[0]


def _dot(fit: int, sixteenfold: bool) -> Any:
    def dot(b: Any, low: Any, high: Any, x: Any, start: Any) -> Any:
        codes = [b.bitcast(q, I8X32) for q in (*low, *high)]

        def add(to: Any, count: int, k: int) -> Any:
            return add_row(b, to, codes[k : k + count], x, k, fit)

        if LEVEL != Level.VNNI:
            return add(spread(b, start), 8, 0)
        # Two sums: in one, every step would wait for the one before.
        first, second = add(spread(b, start), 4, 0), add(const(I32X8, 0), 4, 4)
        return b.add(first, b.ashr(second, const(I32X8, 4)) if sixteenfold else second)

    dot.__doc__ = "Start value plus the products of 32 tile columns, codes of 16 and 16, with a row of int8 at x."
    return op(Ints, Quad, Quad, Addr, types.int32)(dot)


# Upper nibbles may stay where they are, 16 times their value, where that fits into what is multiplied; one shift of the
# sum, which is exact, then does for four of the codes.
IN_PLACE = LEVEL == Level.VNNI
dot_4, dot_5, dot_8, dot_nibbles = _dot(8, False), _dot(4, False), _dot(SIGNED, False), _dot(8, IN_PLACE)


@op(Quad, Quad)
def upper4(b: Any, q: Any) -> Any:
    """The upper nibble of every byte as `dot_nibbles` takes it."""
    if IN_PLACE:
        return [b.and_(x, const(I32X8, -0x0F0F0F10)) for x in q]
    return [b.and_(b.lshr(x, const(I32X8, 4)), const(I32X8, 0x0F0F0F0F)) for x in q]
