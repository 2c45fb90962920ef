"""Values of dims-major records (plain and scalar types): 16 dims of 8 tokens, lanes along tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    Q4_1_,
    Q5_1_,
    Q8_0_,
    SCALE_AT,
)
from polykv.fast.cpu.lift_simd import pick16
from polykv.fast.cpu.simd import load_f, load_i, load_u8x8, load_u16x8, splat_i, store_f
from polykv.fast.cpu.simd_math import bits_f, field, fma, join_i, low_half, shl, signed_byte, sub_i, to_f

# Dims of a panel, and bytes of one of its rows.
WIDTH, STEP = 16, 64


@kernel()
def half8(p: int) -> Any:
    """8 float16 at p."""
    return low_half(load_u16x8(p))


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
    elif family in (Q4_1_, Q5_1_):
        at = 2 * (d // 32 * block + t)
        scale, low = half8(rec + geom[SCALE_AT] + at), half8(rec + geom[MIN_AT] + at)
        for j in range(WIDTH):
            store_f(out, fma(to_f(_code(rec, t, geom, d, j)), scale, low))
            out += STEP
    elif family == IQ4_NL_:
        for j in range(WIDTH):
            store_f(out, pick16(table, _code(rec, t, geom, d, j)))
            out += STEP
    else:
        middle = splat_i(np.int32(1 << (geom[BITS] - 1)))
        for j in range(WIDTH):
            store_f(out, to_f(sub_i(_code(rec, t, geom, d, j), middle)))
            out += STEP


@kernel(inlined=True)
def _code(rec: int, t: int, geom: Any, d: int, j: int) -> Any:
    """Codes of dim d + j, stored as nibbles and upper bits."""
    block, extra = geom[BLOCK], geom[BITS] - 4
    low = field(load_u8x8(rec + (d // 32 * 16 + j) * block + t), np.int32(d % 32 // 4), np.int32(15))
    if extra == 0:
        return low
    # Where the upper bits of this dim are: which of the token's words, and which of its bits.
    word, place = (d + j) * extra // 32, (d + j) % (32 // extra)
    bit = 8 * (place & 3) + extra * (place >> 2)
    upper = field(load_i(rec + geom[HIGH_AT] + 4 * (word * block + t)), np.int32(bit), np.int32((1 << extra) - 1))
    return join_i(low, upper, np.int32(4))
