"""Keys of types with long tables (8-bit and trellis codes) as integers: two planes of bytes, like keys of Q8_0.

Levels are integers of 16 bits (`lift_words`), k = 256 high + low with two signed bytes, so

    <q, k> = <256 q, high> + <q, low>.

A piece becomes what it would be as Q8_0 in a block of 8 tokens, [., 8, 4] and scales, of twice as many dims: of every
32 dims first the high bytes, then the low ones. The query is laid out likewise (`attend_query`), and the products of
`attend_tile_k` do the rest. Groups of dims begin a new 32; what fills them up meets zeros of the query.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import (
    BITS,
    BLOCK,
    FAMILY,
    GROUP,
    LLOYD_,
    PIECE,
    PREFIX,
    ROW,
    SCALE_AT,
    STORED,
    STREAM,
    TRELLIS_,
    WORTH,
)
from polykv.fast.cpu.lift_stream import reader
from polykv.fast.cpu.lift_words import HAS_WORDS, Words, spans
from polykv.fast.cpu.simd import load_u16x8, store_u16x8
from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I8,
    I32,
    I32X8,
    I64,
    Addr,
    cgutils,
    const,
    op,
    read,
    spread,
    types,
    write,
)
from polykv.fast.cpu.simd_math import multiply_add
from polykv.fast.cpu.simd_wide import lanes

# Bytes of 32 dims of a piece in one plane.
PLANE = 32 * PIECE


@kernel()
def in_planes(geom: Any) -> Any:
    """Whether keys of this layout are multiplied in two planes."""
    return geom[FAMILY] in (LLOYD_, TRELLIS_) and geom[BITS] + geom[PREFIX] >= 8


@kernel()
def planes_of(geom: Any) -> Any:
    """Planes of 32 dims of a key."""
    return 2 * -(-geom[GROUP] // 32) * (geom[STORED] // geom[GROUP])


def _place(b: Any, out: Any, i: Any) -> Any:
    """Emit where sixteen i of a group has its high bytes; its low ones are a plane further."""
    pair, odd = b.lshr(i, I64(1)), b.and_(i, I64(1))
    return b.add(out, b.add(b.mul(pair, I64(2 * PLANE)), b.mul(odd, I64(PLANE // 2))))


def _in_registers(bits: int, prefix: int) -> Any:
    @op(types.void, Addr, types.int64, types.int64, Addr, Addr)
    def build(b: Any, p: Any, row: Any, n: Any, table: Any, out: Any) -> None:
        """n sixteens of values of 8 tokens whose codes begin at p, `row` bytes apart, to planes."""
        words, starts = Words(b, table, bits, prefix, True), [b.add(p, b.mul(row, I64(i))) for i in range(8)]
        size = 16 if bits == 8 else 8
        with cgutils.for_range(b, n, intp=I64) as loop:
            to = _place(b, out, loop.index)
            codes = [b.add(a, b.mul(loop.index, I64(2 * bits))) for a in starts]
            near, far = spans(b, bits, codes[:4]), spans(b, bits, codes[4:])
            for half in (0, 1):
                # Two quads: where their codes begin in a span, in bytes and bits.
                quads = [divmod(4 * j * bits, 8) for j in (2 * half, 2 * half + 1)]
                found = lanes(b, near, far, [size * t + at + k for at, _ in quads for t in range(8) for k in range(4)])
                places = [32 * (t % 2) + bit + bits * k for _, bit in quads for t in range(8) for k in range(4)]
                low, high = words.look_up(b, found, places)
                write(b, b.add(to, I64(64 * half)), high)
                write(b, b.add(to, I64(64 * half + PLANE)), low)

    return build


def _in_memory(bits: int, prefix: int) -> Any:
    @op(types.void, Addr, types.int64, types.int64, Addr, Addr)
    def build(b: Any, p: Any, row: Any, n: Any, table: Any, out: Any) -> None:
        """The same from rounded levels, read one by one."""
        values, magic = reader(b, table, bits, prefix), const(F32X8, 12582912.0)
        inverse = spread(b, b.fdiv(F32(1.0), read(b, b.add(table, I64(4 * WORTH)), F32)))
        with cgutils.for_range(b, n, intp=I64) as loop:
            to = _place(b, out, loop.index)
            for t in range(8):
                codes = b.add(b.add(p, b.mul(row, I64(t))), b.mul(loop.index, I64(2 * bits)))
                for half in (0, 1):
                    # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
                    x = multiply_add(b, values(b.add(codes, I64(half * bits))), inverse, magic)
                    whole = b.sub(b.bitcast(x, I32X8), b.bitcast(magic, I32X8))
                    high = b.ashr(b.add(whole, const(I32X8, 128)), const(I32X8, 8))
                    for plane, part in enumerate((high, whole)):
                        quads = b.bitcast(b.trunc(part, ir.VectorType(I8, 8)), ir.VectorType(I32, 2))
                        for j in range(2):
                            at = 32 * (2 * half + j) + 4 * t + PLANE * plane
                            write(b, b.add(to, I64(at)), b.extract_element(quads, I32(j)))

    return build


_planes = _in_registers if HAS_WORDS else _in_memory
_planes8, _trellis_planes3, _trellis_planes2 = _planes(8, 0), _planes(3, 6), _planes(2, 6)


@kernel()
def lift_planes(rec: int, t: int, geom: Any, table: int, out: int) -> None:
    """All dims of 8 tokens from t of a record to planes at `out`, and behind them a scale for each plane."""
    bits, row, count, sixteens = geom[BITS], geom[ROW], 2 * -(-geom[GROUP] // 32), -(-geom[GROUP] // 16)
    scales, to = rec + geom[SCALE_AT] + 2 * t, out + PLANE * planes_of(geom)
    for i in range(geom[STORED] // geom[GROUP]):
        codes = rec + t * row + i * geom[STREAM]
        if geom[PREFIX] == 0:
            _planes8(codes, row, sixteens, table, out)
        elif bits == 3:
            _trellis_planes3(codes, row, sixteens, table, out)
        else:
            _trellis_planes2(codes, row, sixteens, table, out)
        out += PLANE * count
        for _ in range(count):
            store_u16x8(to, load_u16x8(scales + 2 * i * geom[BLOCK]))
            to += 2 * PIECE
