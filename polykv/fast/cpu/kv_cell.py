"""Codes and scales of one group <-> one cell (token) of a resident record (`kv_layout` has the picture).

All arguments are addresses; codes are int32 [g] (`encode_tile`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_bits import (
    add_upper,
    get_stream,
    nibble_pair,
    put_stream,
    set_nibbles,
    upper_word,
)
from polykv.fast.cpu.kv_layout import (
    BF16_,
    BITS,
    BLOCK,
    F16_,
    F32_,
    FAMILY,
    GROUP,
    HIGH_AT,
    LLOYD_,
    MIN_AT,
    PREFIX,
    Q4_1_,
    Q5_1_,
    Q8_0_,
    ROW,
    SCALE_AT,
    STREAM,
    TRELLIS_,
)
from polykv.fast.cpu.simd import get_i32, get_u8, get_u16, put_i8, put_i16, put_i32


@kernel()
def _in_fours(rec: int, dim: int, block: int, t: int) -> int:
    """Where a byte of token t is when dims lie in fours of a token."""
    return rec + (dim // 4 * block + t) * 4 + dim % 4


@kernel()
def group_to_cell(codes: int, scale: int, minimum: int, geom: Any, rec: int, t: int, i: int) -> None:
    """Write group i of token t of a record."""
    family, g, block, bits = geom[FAMILY], geom[GROUP], geom[BLOCK], geom[BITS]
    first = g * i * block + t
    if family == F32_:
        for j in range(g):
            put_i32(rec + 4 * (first + j * block), get_i32(codes + 4 * j))
        return
    if family in (F16_, BF16_):
        for j in range(g):
            put_i16(rec + 2 * (first + j * block), get_i32(codes + 4 * j))
        return
    put_i16(rec + geom[SCALE_AT] + 2 * (i * block + t), np.int32(scale))
    if family in (Q4_1_, Q5_1_):
        put_i16(rec + geom[MIN_AT] + 2 * (i * block + t), np.int32(minimum))
    if family in (LLOYD_, TRELLIS_):
        put_stream(codes, g, geom[PREFIX], bits, geom[PREFIX], rec + t * geom[ROW] + i * geom[STREAM])
    elif family == Q8_0_:
        for j in range(g):
            put_i8(_in_fours(rec, g * i + j, block, t), get_i32(codes + 4 * j))
    else:
        for j in range(16):
            put_i8(rec + (16 * i + j) * block + t, nibble_pair(codes, j))
        for w in range(bits - 4):
            at = rec + geom[HIGH_AT] + 4 * ((i * (bits - 4) + w) * block + t)
            put_i32(at, upper_word(codes, w, bits))


@kernel()
def cell_to_group(geom: Any, rec: int, t: int, i: int, codes: int) -> Any:
    """Read group i of token t of a record; returns its scale and its minimum."""
    family, g, block, bits = geom[FAMILY], geom[GROUP], geom[BLOCK], geom[BITS]
    scale, minimum, first = np.int32(0), np.int32(0), g * i * block + t
    if family == F32_:
        for j in range(g):
            put_i32(codes + 4 * j, get_i32(rec + 4 * (first + j * block)))
        return scale, minimum
    if family in (F16_, BF16_):
        for j in range(g):
            put_i32(codes + 4 * j, get_u16(rec + 2 * (first + j * block)))
        return scale, minimum
    scale = get_u16(rec + geom[SCALE_AT] + 2 * (i * block + t))
    if family in (Q4_1_, Q5_1_):
        minimum = get_u16(rec + geom[MIN_AT] + 2 * (i * block + t))
    if family in (LLOYD_, TRELLIS_):
        get_stream(rec + t * geom[ROW] + i * geom[STREAM], g, 0, bits, geom[PREFIX], codes)
    elif family == Q8_0_:
        for j in range(g):
            put_i32(codes + 4 * j, get_u8(_in_fours(rec, g * i + j, block, t)))
    else:
        for j in range(16):
            set_nibbles(codes, j, get_u8(rec + (16 * i + j) * block + t))
        for w in range(bits - 4):
            at = rec + geom[HIGH_AT] + 4 * ((i * (bits - 4) + w) * block + t)
            add_upper(codes, w, bits, get_i32(at))
    return scale, minimum
