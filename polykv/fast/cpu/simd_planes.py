"""Eight-bit codes in two planes of four bits: apart, together, and products with the upper plane alone.

A code q = 16 h + l - 128 has the upper nibble h and the lower one l, both 0 .. 15. Vectors are those of a tile
(`simd_weights`): lane r belongs to row r, and vector i holds columns 4i .. 4i + 3 of 32 as bytes. A plane keeps the
nibbles of vector i, for i = 0 .. 3, in the low halves of bytes and those of vector i + 4 in the high halves.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu.simd_core import I8X32, I32X8, I64, Addr, Ints, Level, const, op, read, spread, types, write
from polykv.fast.cpu.simd_weights import BIAS, IN_PLACE, LEVEL, Quad, add_row

# The sign bit of every byte: between codes and codes plus 128.
SIGNS, LOW, HIGH = const(I32X8, -0x7F7F7F80), const(I32X8, 0x0F0F0F0F), const(I32X8, -0x0F0F0F10)
FOUR = const(I32X8, 4)
# Products of so many vectors of codes of 4 bits fit into int16 (`simd_weights`).
FIT = 8


def _pick(b: Any, low: Any, high: Any) -> Any:
    """Emit bytes with the low halves of one vector and the high halves of another."""
    return b.or_(b.and_(low, LOW), b.and_(high, HIGH))


@op(types.void, Addr, Addr, Quad, Quad)
def store_planes(b: Any, upper: Any, lower: Any, first: Any, second: Any) -> None:
    """Store the planes, 128 bytes each, of the codes (signed bytes) of columns 0 .. 15 and 16 .. 31."""
    for i, (x, y) in enumerate(zip(first, second, strict=True)):
        x, y = b.xor(x, SIGNS), b.xor(y, SIGNS)
        write(b, b.add(upper, I64(32 * i)), _pick(b, b.lshr(x, FOUR), y))
        write(b, b.add(lower, I64(32 * i)), _pick(b, x, b.shl(y, FOUR)))


@op(types.UniTuple(Ints, 8), Addr, Addr)
def load_planes(b: Any, upper: Any, lower: Any) -> Any:
    """Codes plus BIAS of 32 columns, eight vectors, of the planes at two addresses."""
    first, second = [], []
    for i in range(4):
        high, low = (read(b, b.add(p, I64(32 * i)), I32X8) for p in (upper, lower))
        first.append(_pick(b, low, b.shl(high, FOUR)))
        second.append(_pick(b, b.lshr(low, FOUR), high))
    codes = first + second
    return codes if BIAS else [b.xor(x, SIGNS) for x in codes]


@op(types.UniTuple(Ints, 8), Addr)
def load_upper(b: Any, p: Any) -> Any:
    """The nibbles of 32 columns of an upper plane, as `dot_upper` takes them."""
    q = [read(b, b.add(p, I64(32 * i)), I32X8) for i in range(4)]
    return [b.and_(x, LOW) for x in q] + [b.and_(x, HIGH) if IN_PLACE else b.and_(b.lshr(x, FOUR), LOW) for x in q]


@op(Ints, types.UniTuple(Ints, 8), Addr, types.int32)
def dot_upper(b: Any, q: Any, x: Any, start: Any) -> Any:
    """start + 16 times the products of upper nibbles with a row of int8 at x."""
    codes = [b.bitcast(v, I8X32) for v in q]
    zero = const(I32X8, 0)
    if LEVEL != Level.VNNI:
        return b.add(spread(b, start), b.shl(add_row(b, zero, codes, x, 0, FIT), FOUR))
    # Two sums, as in `dot_nibbles`; what stays in place is 16 times its value already.
    first = add_row(b, zero, codes[:4], x, 0, FIT)
    return b.add(b.shl(first, FOUR), add_row(b, spread(b, start), codes[4:], x, 4, FIT))
