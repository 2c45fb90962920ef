"""Integer keys as quads of int8 (`attend_tile_k`): four dims of a token to a lane, eight tokens to a vector.

Q8_0 lies in its records like this. Types with nibbles and upper bits are dims-major; a piece of them becomes what Q8_0
is in blocks of 8 tokens, [D'/4, 8, 4].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import BITS, BLOCK, FAMILY, HIGH_AT, IQ4_NL_, STORED
from polykv.fast.cpu.lift_simd import HAS_PERMUTE
from polykv.fast.cpu.simd import load_i
from polykv.fast.cpu.simd_core import I8, I8X32, I32X8, I64, Addr, Ints, call, const, op, read, spread, types, write
from polykv.fast.cpu.simd_weights import IQ4
from polykv.fast.cpu.simd_wide import lanes

# Bytes of a quad of a piece.
QUAD = 32


def _bytes(b: Any, p: Any, step: Any) -> Any:
    """Emit 8 bytes at each of four places `step` bytes apart, in turns."""
    rows = [read(b, b.add(p, b.mul(step, I64(i))), ir.VectorType(I8, 8)) for i in range(4)]
    low, high = (lanes(b, rows[i], rows[i + 1], [j // 2 + 8 * (j % 2) for j in range(16)]) for i in (0, 2))
    turns = [2 * (j // 4) + j % 2 + 16 * (j % 4 // 2) for j in range(32)]
    return lanes(b, low, high, turns)


def _iq4(b: Any, index: Any) -> Any:
    """Emit the values of IQ4_NL for bytes 0 .. 15."""
    if HAS_PERMUTE:
        return call(b, "llvm.x86.avx2.pshuf.b", I8X32, ir.Constant(I8X32, [v & 255 for v in IQ4] * 2), index)
    found = const(I8X32, IQ4[0] & 255)
    for i in range(1, 16):
        found = b.select(b.icmp_unsigned("==", index, const(I8X32, i)), const(I8X32, IQ4[i] & 255), found)
    return found


def _nibbles(looked_up: bool) -> Any:
    @op(types.void, Addr, types.int64, Addr)
    def build(b: Any, p: Any, step: Any, out: Any) -> None:
        """32 dims of codes of four bits: bytes of 16 dims `step` apart at p, to eight quads."""
        for i in range(4):
            x = _bytes(b, b.add(p, b.mul(step, I64(4 * i))), step)
            for at, part in ((i, b.and_(x, const(I8X32, 15))), (i + 4, b.lshr(x, const(I8X32, 4)))):
                values = _iq4(b, part) if looked_up else b.sub(part, const(I8X32, 8))
                write(b, b.add(out, I64(QUAD * at)), values)

    return build


signed_nibbles, iq4_nibbles = _nibbles(False), _nibbles(True)


def _upper(extra: int) -> Any:
    @op(types.void, Addr, types.int64, Ints, types.int32, types.int32, Addr)
    def build(b: Any, p: Any, step: Any, word: Any, bit: Any, shift: Any, out: Any) -> None:
        """16 dims of codes of 4 + extra bits less their middle: nibbles from bit `shift` of bytes `step` apart at p,
        and of every four dims `extra` bits of each byte of `word`, from `bit` on."""
        upper = b.lshr(word, spread(b, bit))
        for i in range(4):
            x = _bytes(b, b.add(p, b.mul(step, I64(4 * i))), step)
            x = b.and_(b.lshr(x, spread(b, b.trunc(shift, I8), 32)), const(I8X32, 15))
            high = b.bitcast(b.lshr(upper, const(I32X8, extra * i)), I8X32)
            high = b.shl(b.and_(high, const(I8X32, (1 << extra) - 1)), const(I8X32, 4))
            write(b, b.add(out, I64(QUAD * i)), b.sub(b.or_(x, high), const(I8X32, 8 << extra)))

    return build


five_bits, six_bits = _upper(1), _upper(2)


@kernel()
def lift_quads(rec: int, t: int, geom: Any, out: int) -> None:
    """All dims of 8 tokens from t of a record of nibbles with or without upper bits to quads at `out`."""
    block, extra = geom[BLOCK], geom[BITS] - 4
    p, words = rec + t, rec + geom[HIGH_AT] + 4 * t
    for _ in range(geom[STORED] // 32):
        if geom[FAMILY] == IQ4_NL_:
            iq4_nibbles(p, block, out)
        elif extra == 0:
            signed_nibbles(p, block, out)
        elif extra == 1:
            word = load_i(words)
            five_bits(p, block, word, np.int32(0), np.int32(0), out)
            five_bits(p, block, word, np.int32(4), np.int32(4), out + 4 * QUAD)
        else:
            six_bits(p, block, load_i(words), np.int32(0), np.int32(0), out)
            six_bits(p, block, load_i(words + 4 * block), np.int32(0), np.int32(4), out + 4 * QUAD)
        p, words, out = p + 16 * block, words + 4 * extra * block, out + 8 * QUAD
