"""Codes and scales of one group <-> its bytes in files (docs/FORMATS.md).

Which groups these are `geom` says: those of memory (packed layout) or of whole blocks (exchange layout, where bytes may
be reserved). Files have no more values of a plain type than the vector, whose last group may so be shorter. All
arguments but the number of the group are addresses; codes are int32 [g] (`encode_tile`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_bits import (
    get_stream,
    nibble_pair,
    put_stream,
    set_nibbles,
)
from polykv.fast.cpu.kv_layout import (
    BF16_,
    BITS,
    CODES_AT,
    DIM,
    F16_,
    F32_,
    FAMILY,
    GROUP,
    GROUP_BYTES,
    LLOYD_,
    PREFIX,
    Q4_1_,
    Q5_1_,
    Q6_0_,
    Q8_0_,
    TRELLIS_,
)
from polykv.fast.cpu.simd import get_i32, get_u8, get_u16, put_i8, put_i16, put_i32


@kernel()
def _upper_q6(codes: int, j: int) -> Any:
    """Byte j of the upper bits: values j, j + 16, j + 8, j + 24, from the lowest bits up."""
    byte = get_i32(codes + 4 * j) >> 4 | (get_i32(codes + 4 * j + 64) >> 4) << 2
    return byte | (get_i32(codes + 4 * j + 32) >> 4) << 4 | (get_i32(codes + 4 * j + 96) >> 4) << 6


@kernel()
def _add_upper_q6(codes: int, j: int, byte: int) -> None:
    for k in range(4):
        at = codes + 4 * j + (0, 64, 32, 96)[k]
        put_i32(at, np.int32(get_i32(at) | ((byte >> (2 * k)) & 3) << 4))


@kernel()
def group_to_bytes(codes: int, scale: int, minimum: int, geom: Any, vector: int, i: int) -> None:
    """Write the bytes of group i of a vector."""
    family, g, bits, out = geom[FAMILY], geom[GROUP], geom[BITS], vector + geom[GROUP_BYTES] * i
    have = min(g, geom[DIM] - g * i)
    if family == F32_:
        for j in range(0, 4 * have, 4):
            put_i32(out + j, get_i32(codes + j))
        return
    if family in (F16_, BF16_):
        for j in range(0, 2 * have, 2):
            put_i16(out + j, get_i32(codes + 2 * j))
        return
    for j in range(geom[GROUP_BYTES]):
        put_i8(out + j, np.int32(0))
    put_i16(out, np.int32(scale))
    at = out + geom[CODES_AT]
    if family in (LLOYD_, TRELLIS_, Q8_0_):
        if bits == 3 and family == LLOYD_:
            put_stream(codes, g, 0, 2, 0, at)
            put_stream(codes, g, 2, 1, 0, at + (g + 3) // 4)
        else:
            put_stream(codes, g, geom[PREFIX], bits, geom[PREFIX], at)
        return
    if family in (Q4_1_, Q5_1_):
        put_i16(out + 2, np.int32(minimum))
    if family == Q6_0_:
        for j in range(8):
            put_i8(at + j, _upper_q6(codes, j))
        at += 8
    elif bits == 5:
        put_stream(codes, g, 4, 1, 0, at)
        at += 4
    for j in range(16):
        put_i8(at + j, nibble_pair(codes, j))


@kernel()
def bytes_to_group(vector: int, i: int, geom: Any, codes: int) -> Any:
    """Read the bytes of group i of a vector; returns its scale and its minimum."""
    family, g, bits, data = geom[FAMILY], geom[GROUP], geom[BITS], vector + geom[GROUP_BYTES] * i
    scale, minimum, have = np.int32(0), np.int32(0), min(g, geom[DIM] - g * i)
    if family in (F32_, F16_, BF16_):
        # Zeros of any plain type beyond the end.
        for j in range(have, g):
            put_i32(codes + 4 * j, np.int32(0))
        for j in range(have):
            put_i32(codes + 4 * j, get_i32(data + 4 * j) if family == F32_ else get_u16(data + 2 * j))
        return scale, minimum
    scale, at = get_u16(data), data + geom[CODES_AT]
    if family in (LLOYD_, TRELLIS_, Q8_0_):
        if bits == 3 and family == LLOYD_:
            get_stream(at, g, 0, 2, 0, codes)
            get_stream(at + (g + 3) // 4, g, 2, 1, 0, codes)
        else:
            get_stream(at, g, 0, bits, geom[PREFIX], codes)
        return scale, minimum
    if family in (Q4_1_, Q5_1_):
        minimum = get_u16(data + 2)
    upper = 8 if family == Q6_0_ else 4 if bits == 5 else 0
    for j in range(16):
        set_nibbles(codes, j, get_u8(at + upper + j))
    if family == Q6_0_:
        for j in range(8):
            _add_upper_q6(codes, j, get_u8(at + j))
    elif bits == 5:
        get_stream(at, g, 4, 1, 0, codes)
    return scale, minimum
