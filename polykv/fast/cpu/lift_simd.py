"""Vector operations that only the cache needs: codes of 3, 4 and 8 bits, table lookup, the 8 x 8 transpose."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from polykv.fast.cpu.simd_core import (
    F32X8,
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


@op(Floats, Floats)
def hadamard8(b: Any, x: Any) -> Any:
    """The first three stages (distances 1, 2, 4) of a Walsh-Hadamard transform on 8 lanes."""
    for h in (1, 2, 4):
        sign = ir.Constant(F32X8, [-1.0 if lane & h else 1.0 for lane in range(8)])
        x = b.fadd(_shuffle(b, x, x, [lane ^ h for lane in range(8)]), b.fmul(x, sign))
    return x
