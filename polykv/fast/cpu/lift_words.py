"""Values of streams with long tables (8-bit and trellis codes), 64 at a time, looked up in registers.

A table of 256 or 512 levels is kept as int16, the largest level as 32639, in two planes of bytes. An instruction that
picks bytes from 128 others (AVX-512 VBMI) serves that much of a plane for 64 codes at once, where reading memory takes
one load per code. Four codes of a token come from 32 bits of its stream; one instruction moves the eight lowest bits of
every code to a byte of its own. The rounding changes a value by some 3e-5 of the usual one; processors without these
instructions read the same rounded levels from memory (`lift_stream`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.kv_layout import PLANES, WORTH
from polykv.fast.cpu.simd_core import (
    F32,
    I8,
    I64,
    Addr,
    call,
    cgutils,
    const,
    features,
    op,
    read,
    spread,
    types,
    write,
)
from polykv.fast.cpu.simd_wide import F32X16, I32X16, joined, lanes

HAS_WORDS = {"avx512vbmi", "avx512bw", "avx512vl"} <= features()
I8X64 = ir.VectorType(I8, 64)
# Bytes from plane to plane: of low bytes, of high bytes, of those for low bytes with a sign.
PLANE = 512


class Words:
    """A table in registers: planes of low and of high bytes of all levels, which have a sign each or together."""

    def __init__(self, b: Any, table: Any, bits: int, prefix: int, signs: bool = False) -> None:
        self.bits, self.wide = bits, bits + prefix > 8
        count = (1 << bits + prefix) // 64
        start = b.add(table, I64(4 * PLANES))
        self.planes = [
            [read(b, b.add(start, I64(plane + 64 * i)), I8X64) for i in range(count)]
            for plane in (0, 2 * PLANE if signs else PLANE)
        ]
        self.worth = spread(b, read(b, b.add(table, I64(4 * WORTH)), F32), 16)

    def look_up(self, b: Any, windows: Any, places: Sequence[int]) -> tuple[Any, Any]:
        """Emit the low and the high bytes of the levels of the codes that begin at bit places[i] of the 64 bits that
        byte i is in."""
        index = self._bytes(b, windows, places)
        upper = b.icmp_signed("<", index, const(I8X64, 0))
        last = None
        if self.wide:
            ninth = self._bytes(b, windows, [p + 8 for p in places])
            last = b.icmp_unsigned("!=", b.and_(ninth, const(I8X64, 1)), const(I8X64, 0))
        low, high = (self._pick(b, plane, index, upper, last) for plane in self.planes)
        return low, high

    @staticmethod
    def _bytes(b: Any, windows: Any, places: Sequence[int]) -> Any:
        if all(p == 8 * i % 64 for i, p in enumerate(places)):
            return windows
        control = ir.Constant(I8X64, [p & 63 for p in places])
        return call(b, "llvm.x86.avx512.pmultishift.qb.512", I8X64, control, windows)

    @staticmethod
    def _pick(b: Any, plane: list[Any], index: Any, upper: Any, last: Any) -> Any:
        quarters = [
            call(b, "llvm.x86.avx512.vpermi2var.qi.512", I8X64, plane[i], index, plane[i + 1])
            for i in range(0, len(plane), 2)
        ]
        halves = [b.select(upper, quarters[i + 1], quarters[i]) for i in range(0, len(quarters), 2)]
        return halves[0] if last is None else b.select(last, halves[1], halves[0])


def joined_all(b: Any, parts: list[Any]) -> Any:
    """Emit one vector of all; a power of two of them, of one type."""
    while len(parts) > 1:
        parts = [joined(b, x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def spans(b: Any, bits: int, starts: list[Any]) -> Any:
    """Emit the bytes at some addresses that hold 16 codes each: 8, or 16 for codes of 8 bits, side by side."""
    kind = ir.VectorType(I8, 16 if bits == 8 else 8)
    return joined_all(b, [read(b, p, kind) for p in starts])


def _in_lanes(b: Any, x: Any, y: Any, unit: int, upper: bool) -> Any:
    """Emit elements of x and y in turns, from the lower (upper) halves of their 128-bit lanes of `unit` elements."""
    start = unit // 2 if upper else 0
    mask = [
        lane + start + i // 2 + x.type.count * (i % 2) for lane in range(0, x.type.count, unit) for i in range(unit)
    ]
    return lanes(b, x, y, mask)


def _two_rows(b: Any, words: Any) -> list[Any]:
    """Emit the int16 in the lower and in the upper halves of 16 lanes as floats."""
    pairs, half = b.bitcast(words, I32X16), const(I32X16, 16)
    return [b.sitofp(x, F32X16) for x in (b.ashr(b.shl(pairs, half), half), b.ashr(pairs, half))]


def _values16(bits: int, prefix: int) -> Any:
    @op(types.void, Addr, Addr, types.int64, types.int64, types.int64, Addr, Addr)
    def build(b: Any, records: Any, first: Any, pieces: Any, offset: Any, row: Any, table: Any, out: Any) -> None:
        """16 values of the tokens of some pieces (int64 each: record and first token), whose codes lie at `offset` in
        rows of so many bytes: rows of 64 bytes at `out`, one per token."""
        if not HAS_WORDS:
            # Never called (`lift_long.in_words`), but compiled.
            return
        words = Words(b, table, bits, prefix)
        with cgutils.for_range(b, pieces, intp=I64) as loop:
            spot = b.mul(loop.index, I64(8))
            start = b.add(read(b, b.add(records, spot), I64), offset)
            start = b.add(start, b.mul(read(b, b.add(first, spot), I64), row))
            to = b.add(out, b.mul(loop.index, I64(8 * 64)))
            for four in (0, 4):
                tokens = [b.add(start, b.mul(row, I64(four + i))) for i in range(4)]
                codes, size = spans(b, bits, tokens), 16 if bits == 8 else 8
                places = [divmod(4 * j * bits, 8) for j in range(4)]
                spots = [size * t + byte + k for byte, _ in places for t in range(4) for k in range(4)]
                found = lanes(b, codes, codes, spots)
                # The same value of two tokens side by side.
                order = [32 * t + bit + bits * i for _, bit in places for _ in (0, 1) for i in range(4) for t in (0, 1)]
                low, high = words.look_up(b, found, order)
                for pair in (0, 1):
                    for i, x in enumerate(_two_rows(b, _in_lanes(b, low, high, 16, pair == 1))):
                        write(b, b.add(to, I64(64 * (four + 2 * pair + i))), b.fmul(x, words.worth))

    return build


values16_8, values16_3, values16_2 = _values16(8, 0), _values16(3, 6), _values16(2, 6)
