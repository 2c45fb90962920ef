"""Values of dims-major records (plain and scalar types): 16 dims of 8 tokens, lanes along tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import (
    BF16_,
    BITS,
    BLOCK,
    F16_,
    F32_,
    FAMILY,
    HIGH_AT,
    IQ4_NL_,
    MIN_AT,
    Q8_0_,
    SCALE_AT,
    WEIGHTED,
)
from polykv.fast.cpu.lift_simd import pick16
from polykv.fast.cpu.simd import load_f, load_i, load_u8x8, load_u16x8, splat_f, store_f
from polykv.fast.cpu.simd_core import F32X8, I8, I16, I32X8, I64, Addr, Floats, const, op, read, types, write
from polykv.fast.cpu.simd_math import bits_f, field, low_half, multiply_add, shl, signed_byte, to_f
from polykv.fast.cpu.simd_wide import I32X16, joined, lanes

# Dims of a panel, and bytes of one of its rows.
WIDTH, STEP = 16, 64


@kernel()
def half8(p: int) -> Any:
    """8 float16 at p."""
    return low_half(load_u16x8(p))


def _columns(extra: int, half: int) -> Any:
    @op(types.void, Addr, types.int64, Addr, Floats, Floats, Addr)
    def build(b: Any, p: Any, step: Any, word: Any, scale: Any, low: Any, out: Any) -> None:
        """Half of 32 dims, times scale, plus low: nibbles of bytes `step` apart at p, their upper bits at `word` as
        `kv_layout` has them."""
        upper = read(b, word, I32X8) if extra else None
        for j in range(WIDTH):
            code = b.zext(read(b, b.add(p, b.mul(step, I64(j))), ir.VectorType(I8, 8)), I32X8)
            code = b.lshr(code, const(I32X8, 4)) if half else b.and_(code, const(I32X8, 15))
            if extra:
                # From where they are to bit 4.
                bit = 8 * (j % 4) + extra * (j // 4) + (4 * half if extra == 1 else 0)
                moved = b.lshr(upper, const(I32X8, bit - 4)) if bit > 4 else b.shl(upper, const(I32X8, 4 - bit))
                code = b.or_(code, b.and_(moved, const(I32X8, ((1 << extra) - 1) << 4)))
            write(b, b.add(out, I64(STEP * j)), multiply_add(b, b.sitofp(code, F32X8), scale, low))

    return build


four_bits, five_bits, six_bits = (_columns(extra, 0) for extra in range(3))
four_bits_more, five_bits_more, six_bits_more = (_columns(extra, 1) for extra in range(3))
ONE = np.float32(1)


@op(types.void, Addr, types.int64, Addr)
def upper_lines(b: Any, p: Any, step: Any, out: Any) -> None:
    """Rows of 8 words `step` bytes apart at p, the upper halves of floats, to 8 rows of 16 floats at `out`: 16 dims of
    8 tokens. They are turned while they are words, in half of the vectors that floats take."""
    rows = [read(b, b.add(p, b.mul(step, I64(j))), ir.VectorType(I16, 8)) for j in range(WIDTH)]
    while len(rows) > 4:
        rows = [joined(b, x, y) for x, y in zip(rows[::2], rows[1::2], strict=True)]
    # Of 8 dims each: four tokens.
    order = [[8 * j + t for t in range(start, start + 4) for j in range(8)] for start in (0, 4)]
    turned = [[lanes(b, x, y, four) for four in order] for x, y in (rows[:2], rows[2:])]
    for t in range(8):
        both = [half[t // 4] for half in turned]
        words = lanes(b, *both, [8 * (t % 4) + 32 * half + j for half in (0, 1) for j in range(8)])
        wide = b.shl(b.zext(words, I32X16), const(I32X16, 16))
        write(b, b.add(out, I64(STEP * t)), wide)


@kernel()
def columns16(rec: int, t: int, geom: Any, table: int, d: int, out: int) -> None:
    """Dims d .. d + 15 (d a multiple of 16) of tokens t .. t + 7 to halves of 16 rows of 64 bytes at `out`.

    Of types with scales the bare codes, around zero, but of those with minima true values.
    """
    family, block = geom[FAMILY], geom[BLOCK]
    if family == F32_:
        for p in range(rec + 4 * (d * block + t), rec + 4 * ((d + WIDTH) * block + t), 4 * block):
            store_f(out, load_f(p))
            out += STEP
    elif family == F16_:
        for p in range(rec + 2 * (d * block + t), rec + 2 * ((d + WIDTH) * block + t), 2 * block):
            store_f(out, half8(p))
            out += STEP
    elif family == BF16_:
        for p in range(rec + 2 * (d * block + t), rec + 2 * ((d + WIDTH) * block + t), 2 * block):
            store_f(out, bits_f(shl(load_u16x8(p), np.int32(16))))
            out += STEP
    elif family == Q8_0_:
        for p in range(rec + d * block + 4 * t, rec + (d + WIDTH) * block + 4 * t, 4 * block):
            quad = load_i(p)
            for j in range(4):
                store_f(out, to_f(signed_byte(quad, np.int32(j))))
                out += STEP
    elif family == IQ4_NL_:
        p, shift = rec + d // 32 * 16 * block + t, np.int32(d % 32 // 4)
        for _ in range(WIDTH):
            store_f(out, pick16(table, field(load_u8x8(p), shift, np.int32(15))))
            p, out = p + block, out + STEP
    else:
        _nibbles16(rec, t, geom, d, out)


@kernel()
def _nibbles16(rec: int, t: int, geom: Any, d: int, out: int) -> None:
    """The same of types with nibbles, with and without upper bits."""
    block, extra, half, group = geom[BLOCK], geom[BITS] - 4, d // 16 % 2, d // 32
    if geom[WEIGHTED]:
        scale, low = splat_f(ONE), splat_f(-np.float32(8 << extra))
    else:
        at = 2 * (group * block + t)
        scale, low = half8(rec + geom[SCALE_AT] + at), half8(rec + geom[MIN_AT] + at)
    p, words = rec + group * 16 * block + t, rec + geom[HIGH_AT] + 4 * (group * extra * block + t)
    if half == 0:
        if extra == 0:
            four_bits(p, block, words, scale, low, out)
        elif extra == 1:
            five_bits(p, block, words, scale, low, out)
        else:
            six_bits(p, block, words, scale, low, out)
    elif extra == 0:
        four_bits_more(p, block, words, scale, low, out)
    elif extra == 1:
        five_bits_more(p, block, words, scale, low, out)
    else:
        six_bits_more(p, block, words + 4 * block, scale, low, out)
