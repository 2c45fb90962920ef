"""Codes of pieces of 8 tokens -> panels of 16 columns, the right operand of the two products of attention.

    K panel   16 tokens side by side, so that scores are q x panel.
              Float and rotated types: float32 [D', 16], scales included.
              Q8_0 and Q4_0: per 32 dims 16 rows of int16 pairs (dims 2i and 2i + 1 of 16 tokens), then the 16 scales.
    V panel   float32 [n, 16], 16 dims side by side, so that outputs are weights x panel; without scales, which belong
              to tokens and so go to the weights (`attend_values`).

A panel is 2 to 32 KiB and is used while it is in the L1 cache; its values are exactly the stored ones (rotated space
for rotated codecs). Eight tokens at a time, wherever their record is: panels, and so the sums over them, know nothing
of blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import BLOCK, F16_, F32_, FAMILY, GROUP, LLOYD_, PIECE, Q8_0_, SCALE_AT, STORED
from polykv.fast.cpu.lift_simd import pairs4, pairs8, table8, transpose8
from polykv.fast.cpu.simd import get_i64, load_f, load_i8x8, load_u8x8, load_u16x8, prefetch, splat_i, store_f, store_i
from polykv.fast.cpu.simd_math import field, low_half, mul_f, sub_i, to_f

# Columns of a panel, the bytes of one of its rows, and rows of pairs per group of 32 dims.
WIDTH = 16
STEP = 64
PAIRS = 16


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
    elif family == F16_:
        for d in range(first, last):
            store_f(out, _f16(rec + 2 * (d * block + t)))
            store_f(out + 32, _f16(rec8 + 2 * (d * block + t8)))
            out += STEP
    elif family == Q8_0_:
        for d in range(first, last):
            store_f(out, _int8(rec + d * block + t))
            store_f(out + 32, _int8(rec8 + d * block + t8))
            out += STEP
    else:
        for d in range(first, last):
            shift, at = np.int32(4 * ((d >> 4) & 1)), (d // 32 * 16 + d % 16) * block
            store_f(out, _nibble(rec + at + t, shift))
            store_f(out + 32, _nibble(rec8 + at + t8, shift))
            out += STEP


@kernel()
def lift_pairs(rec: int, t: int, rec8: int, t8: int, geom: Any, out: int, near: int, near8: int) -> None:
    """8 tokens from t of a record of Q8_0 or Q4_0, and 8 from t8 of another, to a K panel of pairs.

    As many bytes as are read are asked for from `near` and `near8`: what comes after these pieces.
    """
    block = geom[BLOCK]
    for group in range(geom[STORED] // 32):
        if geom[FAMILY] == Q8_0_:
            p, p8 = rec + 32 * group * block + t, rec8 + 32 * group * block + t8
            for _ in range(PAIRS // 4):
                near, near8 = _ask(near, near8)
                for _ in range(4):
                    store_i(out, pairs8(p, p + block))
                    store_i(out + 32, pairs8(p8, p8 + block))
                    p += 2 * block
                    p8 += 2 * block
                    out += STEP
        else:
            for shift in range(0, 8, 4):
                near, near8 = _ask(near, near8)
                p, p8 = rec + 16 * group * block + t, rec8 + 16 * group * block + t8
                for _ in range(PAIRS // 2):
                    store_i(out, pairs4(p, p + block, np.int32(shift)))
                    store_i(out + 32, pairs4(p8, p8 + block, np.int32(shift)))
                    p += 2 * block
                    p8 += 2 * block
                    out += STEP
        near, near8 = _ask(near, near8)
        at = geom[SCALE_AT] + 2 * group * block
        store_f(out, _f16(rec + at + 2 * t))
        store_f(out + 32, _f16(rec8 + at + 2 * t8))
        out += STEP


@kernel()
def _ask(near: int, near8: int) -> Any:
    """Ask for two cache lines; returns where the next ones are."""
    prefetch(near)
    prefetch(near8)
    return near + 64, near8 + 64


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
    """All dims of 8 tokens from t of a record, and of 8 from t8 of another, to a K panel of floats.

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
    for i in range(0, 8 * pieces, 8):
        codes = get_i64(rec + i) + dim // 8 * 3 + get_i64(first + i) * row
        for _ in range(PIECE):
            store_f(panel, table8(values, codes))
            store_f(panel + 32, table8(values, codes + 3))
            codes += row
            panel += STEP


@kernel()
def scales8(rec: int, t: int, geom: Any, group: int) -> Any:
    """The scales of 8 tokens from t of a record, for one group of dims."""
    return _f16(rec + geom[SCALE_AT] + 2 * (group * geom[BLOCK] + t))
