"""Values of token-major streams (rotated types): 8 codes of a token at a time, looked up in the table of the codec.

8 codes of b bits are b bytes, whatever their place in the stream; those of a trellis overlap, each reaching six bits
into the next ones. Tables of up to 16 levels are in registers; longer ones are read value by value, rounded as in
`lift_words`, which is used instead where the processor can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_simd import gathered
from polykv.fast.cpu.kv_layout import BITS, PREFIX, ROUNDED, ROW
from polykv.fast.cpu.lift_simd import look_up, look_up16, transposed
from polykv.fast.cpu.simd_core import (
    F32X8,
    I8,
    I32,
    I32X8,
    I64,
    Addr,
    Floats,
    const,
    op,
    read,
    spread,
    types,
    write,
)


def _fields(b: Any, p: Any, bits: int) -> Any:
    """Emit 8 lanes, each with a code in its low bits and with whatever follows above: 4 bytes are read (or 8)."""
    if bits == 8:
        return b.zext(read(b, p, ir.VectorType(I8, 8)), I32X8)
    return b.lshr(spread(b, read(b, p, I32)), ir.Constant(I32X8, [bits * i for i in range(8)]))


def reader(b: Any, table: Any, bits: int, prefix: int) -> Callable[[Any], Any]:
    """Emit what is needed once; returns what emits the 8 values that the codes at an address stand for."""
    if prefix or bits == 8:
        mask = const(I32X8, (1 << (bits + prefix)) - 1)
        rounded = b.add(table, I64(4 * ROUNDED))
        return lambda p: gathered(b, rounded, b.and_(_fields(b, p, bits), mask))
    low = read(b, table, F32X8)
    if bits < 4:
        return lambda p: look_up(b, low, _fields(b, p, bits))
    high = read(b, b.add(table, I64(32)), F32X8)
    return lambda p: look_up16(b, low, high, _fields(b, p, bits))


def _square(bits: int) -> Any:
    @op(types.void, Addr, types.int64, Addr, Floats, Addr)
    def build(b: Any, codes: Any, row: Any, table: Any, scale: Any, out: Any) -> None:
        """8 values of each of 8 tokens, whose codes lie `row` bytes apart, times the tokens' scales: halves of rows of
        64 bytes at `out`, one per value."""
        values = reader(b, table, bits, 0)
        tokens = [values(b.add(codes, b.mul(row, I64(i)))) for i in range(8)]
        for i, v in enumerate(transposed(b, tokens)):
            write(b, b.add(out, I64(64 * i)), b.fmul(v, scale))

    return build


def _lines(bits: int, prefix: int) -> Any:
    @op(types.void, Addr, types.int64, Addr, Addr)
    def build(b: Any, codes: Any, row: Any, table: Any, out: Any) -> None:
        """16 values of each of 8 tokens, whose codes lie `row` bytes apart, to rows of 64 bytes at `out`."""
        values = reader(b, table, bits, prefix)
        for i in range(8):
            p, to = b.add(codes, b.mul(row, I64(i))), b.add(out, I64(64 * i))
            write(b, to, values(p))
            write(b, b.add(to, I64(32)), values(b.add(p, I64(bits))))

    return build


_square2, _square3, _square4 = (_square(bits) for bits in (2, 3, 4))
_lines2, _lines3, _lines4, _lines8 = (_lines(bits, 0) for bits in (2, 3, 4, 8))
_trellis_lines2, _trellis_lines3 = _lines(2, 6), _lines(3, 6)


@kernel()
def stream_square(geom: Any, codes: int, table: int, scale: Any, out: int) -> None:
    """8 values of 8 tokens times their scales, lanes along tokens: halves of 8 rows of 64 bytes at `out`.

    Not for long tables (`lift_planes`).
    """
    bits, row = geom[BITS], geom[ROW]
    if bits == 3:
        _square3(codes, row, table, scale, out)
    elif bits == 2:
        _square2(codes, row, table, scale, out)
    else:
        _square4(codes, row, table, scale, out)


@kernel()
def stream_lines(geom: Any, codes: int, table: int, out: int) -> None:
    """16 values of 8 tokens, lanes along values: 8 rows of 64 bytes at `out`."""
    bits, row = geom[BITS], geom[ROW]
    if geom[PREFIX] == 0:
        if bits == 3:
            _lines3(codes, row, table, out)
        elif bits == 2:
            _lines2(codes, row, table, out)
        elif bits == 4:
            _lines4(codes, row, table, out)
        else:
            _lines8(codes, row, table, out)
    elif bits == 3:
        _trellis_lines3(codes, row, table, out)
    else:
        _trellis_lines2(codes, row, table, out)
