"""Codes of pieces of 8 tokens -> float32 panels of 16 columns, the right operand of the two products of attention.

K panel [D', 16]: 16 tokens side by side, so that scores are q [D'] x panel. V panel [n, 16]: 16 dims side by side, so
that outputs are weights [n] x panel. A panel is 4 to 32 KiB and is used while it is in the L1 cache; its values are
exactly the decoded values (rotated space for rotated codecs), scales included. Eight tokens at a time, wherever their
record is: panels, and so the sums over them, know nothing of blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_row import F16_, F32_, LLOYD_, Q8_0_
from polykv.fast.cpu.kv_layout import BLOCK, FAMILY, GROUP, PIECE, SCALE_AT, STORED
from polykv.fast.cpu.lift_simd import table8, transpose8
from polykv.fast.cpu.simd import get_f32, get_i64, load_f, load_i8x8, load_u8x8, load_u16x8, splat_f, splat_i, store_f
from polykv.fast.cpu.simd_math import field, low_half, mul_f, sub_i, to_f

# Columns of a panel, and the bytes of one of its rows.
WIDTH = 16
STEP = 64


@kernel()
def _f16(p: int) -> Any:
    return low_half(load_u16x8(p))


@kernel()
def _int8(p: int) -> Any:
    return to_f(load_i8x8(p))


@kernel()
def _nibble(p: int, shift: Any) -> Any:
    return to_f(sub_i(field(load_u8x8(p), shift, np.int32(15)), splat_i(np.int32(8))))


@kernel()
def _columns(rec: int, t: int, rec8: int, t8: int, geom: Any, first: int, last: int, out: int) -> None:
    """Dims first..last-1 (borders of 16) of 8 tokens of a dims-major record, and of 8 of another, to rows of 16."""
    family, block = geom[FAMILY], geom[BLOCK]
    if family == F32_:
        for d in range(first, last):
            store_f(out, load_f(rec + 4 * (d * block + t)))
            store_f(out + 32, load_f(rec8 + 4 * (d * block + t8)))
            out += STEP
        return
    if family == F16_:
        for d in range(first, last):
            store_f(out, _f16(rec + 2 * (d * block + t)))
            store_f(out + 32, _f16(rec8 + 2 * (d * block + t8)))
            out += STEP
        return
    for d0 in range(first, last, 16):
        at = geom[SCALE_AT] + 2 * (d0 // 32 * block)
        scale, scale8 = _f16(rec + at + 2 * t), _f16(rec8 + at + 2 * t8)
        if family == Q8_0_:
            p, p8 = rec + d0 * block + t, rec8 + d0 * block + t8
            for _ in range(16):
                store_f(out, mul_f(_int8(p), scale))
                store_f(out + 32, mul_f(_int8(p8), scale8))
                p += block
                p8 += block
                out += STEP
        else:
            shift = np.int32(4 * ((d0 >> 4) & 1))
            p, p8 = rec + d0 // 32 * 16 * block + t, rec8 + d0 // 32 * 16 * block + t8
            for _ in range(16):
                store_f(out, mul_f(_nibble(p, shift), scale))
                store_f(out + 32, mul_f(_nibble(p8, shift), scale8))
                p += block
                p8 += block
                out += STEP


@kernel()
def _transposed(rec: int, t: int, geom: Any, table: int, dims: int, out: int, square: int) -> None:
    """All dims of 8 tokens from t of a token-major record to halves of rows of 16 at `out`."""
    values, row, group = load_f(table), geom[STORED] // 8 * 3, geom[GROUP]
    codes, scales = rec + t * row, rec + geom[SCALE_AT] + 2 * t
    for begin in range(0, dims, group):
        scale = _f16(scales)
        scales += 2 * geom[BLOCK]
        for _ in range(begin, begin + group, 8):
            for i in range(PIECE):
                store_f(square + 32 * i, table8(values, codes + i * row))
            transpose8(square, 32, out, STEP)
            for i in range(8):
                store_f(out + i * STEP, mul_f(load_f(out + i * STEP), scale))
            codes += 3
            out += 8 * STEP


@kernel()
def lift_k(rec: int, t: int, rec8: int, t8: int, geom: Any, table: int, dims: int, panel: int, square: int) -> None:
    """All dims of 8 tokens from t of a record, and of 8 from t8 of another, to a K panel.

    Addresses: records, table of the codec, panel, 256 bytes of scratch.
    """
    if geom[FAMILY] == LLOYD_:
        _transposed(rec, t, geom, table, dims, panel, square)
        _transposed(rec8, t8, geom, table, dims, panel + 32, square)
    else:
        _columns(rec, t, rec8, t8, geom, 0, dims, panel)


@kernel()
def lift_v(rec: int, first: int, pieces: int, geom: Any, table: int, dim: int, panel: int, square: int) -> None:
    """Dims dim..dim+15 of the tokens of some pieces to a V panel.

    Addresses: int64 per piece, its record and its first token there (one piece more when their number is odd); table of
    the codec, panel, 1024 bytes of scratch.
    """
    if geom[FAMILY] != LLOYD_:
        for i in range(0, 8 * pieces, 16):
            records, tokens = rec + i, first + i
            rec0, rec8, t, t8 = get_i64(records), get_i64(records + 8), get_i64(tokens), get_i64(tokens + 8)
            _columns(rec0, t, rec8, t8, geom, dim, dim + WIDTH, square)
            for half in range(2):
                transpose8(square + 32 * half, STEP, panel, STEP)
                transpose8(square + 32 * half + 8 * STEP, STEP, panel + 32, STEP)
                panel += PIECE * STEP
        return
    values, row = load_f(table), geom[STORED] // 8 * 3
    at, scale_at = dim // 8 * 3, geom[SCALE_AT] + 2 * (dim // geom[GROUP] * geom[BLOCK])
    for i in range(0, 8 * pieces, 8):
        store_f(square + 4 * i, _f16(get_i64(rec + i) + scale_at + 2 * get_i64(first + i)))
    for i in range(0, 8 * pieces, 8):
        codes = get_i64(rec + i) + at + get_i64(first + i) * row
        for j in range(PIECE):
            scale = splat_f(get_f32(square + 4 * (i + j)))
            store_f(panel, mul_f(table8(values, codes), scale))
            store_f(panel + 32, mul_f(table8(values, codes + 3), scale))
            codes += row
            panel += STEP
