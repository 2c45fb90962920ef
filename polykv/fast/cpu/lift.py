"""Codes of one record -> float32 panels of 16 columns, the right operand of the two products of attention.

K panel [D', 16]: 16 tokens side by side, so that scores are q [D'] x panel. V panel [n, 16]: 16 dims side by side, so
that outputs are weights [n] x panel. A panel is 4 to 32 KiB and is used while it is in the L1 cache; its values are
exactly the decoded values (rotated space for rotated codecs), scales included.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_row import F16_, F32_, LLOYD_, Q8_0_
from polykv.fast.cpu.kv_layout import BLOCK, FAMILY, GROUP, SCALE_AT, STORED
from polykv.fast.cpu.lift_simd import table8, transpose8
from polykv.fast.cpu.simd import get_f32, load_f, load_i8x8, load_u8x8, load_u16x8, splat_f, splat_i, store_f
from polykv.fast.cpu.simd_math import field, low_half, mul_f, sub_i, to_f

# Columns of a panel, and the bytes of one of its rows.
WIDTH = 16
STEP = 64


@kernel()
def _f32(p: int) -> Any:
    return load_f(p)


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
def _columns(rec: int, geom: Any, t: int, first: int, last: int, out: int) -> None:
    """Tokens t..t+15 of dims first..last-1 (borders of 16) of a dims-major record to rows of 16 at `out`."""
    family, block = geom[FAMILY], geom[BLOCK]
    if family == F32_:
        for d in range(first, last):
            p = rec + 4 * (d * block + t)
            store_f(out, _f32(p))
            store_f(out + 32, _f32(p + 32))
            out += STEP
        return
    if family == F16_:
        for d in range(first, last):
            p = rec + 2 * (d * block + t)
            store_f(out, _f16(p))
            store_f(out + 32, _f16(p + 16))
            out += STEP
        return
    for d0 in range(first, last, 16):
        at = rec + geom[SCALE_AT] + 2 * (d0 // 32 * block + t)
        scale, scale8 = _f16(at), _f16(at + 16)
        if family == Q8_0_:
            for d in range(d0, d0 + 16):
                p = rec + d * block + t
                store_f(out, mul_f(_int8(p), scale))
                store_f(out + 32, mul_f(_int8(p + 8), scale8))
                out += STEP
        else:
            shift = np.int32(4 * ((d0 >> 4) & 1))
            for d in range(16):
                p = rec + (d0 // 32 * 16 + d) * block + t
                store_f(out, mul_f(_nibble(p, shift), scale))
                store_f(out + 32, mul_f(_nibble(p + 8, shift), scale8))
                out += STEP


@kernel()
def _scales(rec: int, geom: Any, t: int, n: int, first: int, out: int) -> None:
    """float32 scales of tokens t..t+n-1 (rounded up to 8) for the group of dim `first`."""
    p = rec + geom[SCALE_AT] + 2 * (first // geom[GROUP] * geom[BLOCK] + t)
    for i in range(0, n, 8):
        store_f(out + 4 * i, low_half(load_u16x8(p + 2 * i)))


@kernel()
def lift_k(rec: int, geom: Any, table: int, t: int, dims: int, panel: int, square: int) -> None:
    """Tokens t..t+15 of all dims to a K panel. Addresses: record, codec table, panel, 512 bytes of scratch."""
    if geom[FAMILY] != LLOYD_:
        _columns(rec, geom, t, 0, dims, panel)
        return
    values, row = load_f(table), geom[STORED] // 8 * 3
    for first in range(0, dims, 8):
        _scales(rec, geom, t, 16, first, square + 256)
        for half in range(2):
            codes, out = rec + (t + 8 * half) * row + first // 8 * 3, panel + first * STEP + 32 * half
            for i in range(8):
                store_f(square + 32 * i, table8(values, codes + i * row))
            transpose8(square, 32, out, STEP)
            scale = load_f(square + 256 + 32 * half)
            for i in range(8):
                store_f(out + i * STEP, mul_f(load_f(out + i * STEP), scale))


@kernel()
def lift_v(rec: int, geom: Any, table: int, t: int, n: int, first: int, panel: int, square: int) -> None:
    """Dims first..first+15 of tokens t..t+n-1 to a V panel (rounded up to 16). `square`: 1024 bytes of scratch."""
    if geom[FAMILY] != LLOYD_:
        for i in range(0, n, 16):
            _columns(rec, geom, t + i, first, first + 16, square)
            for half in range(2):
                rows = panel + (i + 8 * half) * STEP
                transpose8(square + 32 * half, STEP, rows, STEP)
                transpose8(square + 32 * half + 8 * STEP, STEP, rows + 32, STEP)
        return
    _scales(rec, geom, t, n, first, square)
    values, row = load_f(table), geom[STORED] // 8 * 3
    codes = rec + t * row + first // 8 * 3
    for i in range(n):
        scale = splat_f(get_f32(square + 4 * i))
        store_f(panel + i * STEP, mul_f(table8(values, codes + i * row), scale))
        store_f(panel + i * STEP + 32, mul_f(table8(values, codes + i * row + 3), scale))
