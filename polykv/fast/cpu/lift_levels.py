"""Three-bit levels as pairs of integers: lane = dim, its lower half a token's int16, its upper half another's.

Codes (`kv_layout`: token-major streams) are looked up, 16 dims of two tokens at a time, or 64 of them where
the processor picks bits and words from a vector (AVX-512 VBMI): 24 bytes of each token, put so that a 64-bit lane holds
the codes of two dims of both, from every half of 32 dims the lower 16 and the upper 16; one instruction then moves each
code to the low bits of its byte, and a table of 16-bit words, of which an index reads five bits and which so repeats
its 8 values four times, does not mind the bits that follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import LOOKUP, LOOKUP_LOW, ROW
from polykv.fast.cpu.lift_simd import codes8, look_up
from polykv.fast.cpu.simd import get_i64
from polykv.fast.cpu.simd_core import F32X8, I8, I16, I32X8, I64, Addr, call, const, op, read, types, write
from polykv.fast.cpu.simd_wide import HAS_PICK, I32X16, joined

I8X64, I16X32 = ir.VectorType(I8, 64), ir.VectorType(I16, 32)
# Dims that are looked up at a time when groups allow it, and always.
SLICE, LEAST = 64 if HAS_PICK else 16, 16
# Emits the values of some dims of two tokens from the addresses of their codes.
Look = Callable[[Any, Any, Any], list[Any]]


def lookup(b: Any, table: Any, dims: int) -> Look:
    """Emit the loads of a codec's tables (`kv_layout`); returns what looks up SLICE or LEAST dims."""
    if dims == LEAST:
        low, high = (read(b, b.add(table, I64(4 * (LOOKUP_LOW + i))), F32X8) for i in (0, 8))
        return lambda b, p, q: [_pick16(b, low, high, p, q)]
    words = read(b, b.add(table, I64(4 * LOOKUP)), I32X16)
    return lambda b, p, q: _pick64(b, words, p, q)


def _pick16(b: Any, low: Any, high: Any, p: Any, q: Any) -> Any:
    """Two tables of int32, one with the integers in the lower halves, one with them in the upper halves."""
    parts = []
    for eight in (0, 3):
        x, y = (codes8(b, b.add(a, I64(eight))) for a in (p, q))
        both = [b.bitcast(look_up(b, t, i), I32X8) for t, i in ((low, x), (high, y))]
        parts.append(b.or_(*both))
    return joined(b, *parts)


def _places(half: int) -> tuple[list[int], list[int]]:
    """For half of 64 dims: bytes of (32 of one token, 32 of the other) to 64-bit lanes, and bits to pick from those."""
    spots, bits = [], []
    for pair in range(8):
        byte, bit = divmod(3 * (32 * half + 2 * pair), 8)
        for token in (0, 32):
            spots += [token + byte, token + byte + 1, token + byte + 6, token + byte + 7]
        for dim in (0, 3):
            bits += [start + bit + dim for start in (0, 16, 32, 48)]
    return spots, bits


def _pick64(b: Any, words: Any, p: Any, q: Any) -> list[Any]:
    raw = b.bitcast(joined(b, read(b, p, I32X8), read(b, q, I32X8)), I8X64)
    found = []
    for half in range(2):
        spots, bits = (ir.Constant(I8X64, list(v)) for v in _places(half))
        near = call(b, "llvm.x86.avx512.permvar.qi.512", I8X64, raw, spots)
        index = b.bitcast(call(b, "llvm.x86.avx512.pmultishift.qb.512", I8X64, bits, near), I16X32)
        for x in (index, b.lshr(index, const(I16X32, 8))):
            values = call(b, "llvm.x86.avx512.permvar.hi.512", I16X32, b.bitcast(words, I16X32), x)
            found.append(b.bitcast(values, I32X16))
    return found


def _store_looked_up(dims: int) -> Any:
    """Eight tokens from p, eight from q, `width` bytes a token, looked up to a panel."""

    @op(types.void, Addr, Addr, types.int64, Addr, Addr)
    def build(b: Any, p: Any, q: Any, width: Any, table: Any, out: Any) -> None:
        look = lookup(b, table, dims)
        for t in range(8):
            row = b.mul(width, I64(t))
            for v, x in enumerate(look(b, b.add(p, row), b.add(q, row))):
                write(b, b.add(out, I64(4 * dims * t + 64 * v)), x)

    return build


_store_slice, _store_least = _store_looked_up(SLICE), _store_looked_up(LEAST)


@kernel()
def lift_levels(records: int, first: int, couples: Any, geom: Any, table: int, dim: int, dims: int, panel: int) -> None:
    """Dims dim .. dim + dims - 1 of the tokens of couples[0] .. couples[1] - 1 to their places in a panel of pairs."""
    row, at = geom[ROW], dim // 8 * 3
    for i in range(16 * couples[0], 16 * couples[1], 16):
        p = get_i64(records + i) + get_i64(first + i) * row + at
        q = get_i64(records + i + 8) + get_i64(first + i + 8) * row + at
        if dims == SLICE:
            _store_slice(p, q, row, table, panel + 2 * i * dims)
        else:
            _store_least(p, q, row, table, panel + 2 * i * dims)
