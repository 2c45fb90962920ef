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
def _dims_major(rec: int, geom: Any, t: int, first: int, last: int, out: int, step: int) -> None:
    """Tokens t..t+7 of dims first..last (borders of 16) of a dims-major record to rows of 8 at `out`."""
    family, block = geom[FAMILY], geom[BLOCK]
    if family == F32_:
        for d in range(first, last):
            store_f(out + (d - first) * step, load_f(rec + 4 * (d * block + t)))
    elif family == F16_:
        for d in range(first, last):
            store_f(out + (d - first) * step, low_half(load_u16x8(rec + 2 * (d * block + t))))
    else:
        for d0 in range(first, last, 16):
            group = d0 // 32
            scale = low_half(load_u16x8(rec + geom[SCALE_AT] + 2 * (group * block + t)))
            p = out + (d0 - first) * step
            if family == Q8_0_:
                for d in range(16):
                    codes = load_i8x8(rec + (d0 + d) * block + t)
                    store_f(p + d * step, mul_f(to_f(codes), scale))
            else:
                shift = np.int32(4 * ((d0 >> 4) & 1))
                for d in range(16):
                    codes = field(load_u8x8(rec + (16 * group + d) * block + t), shift, np.int32(15))
                    store_f(p + d * step, mul_f(to_f(sub_i(codes, splat_i(np.int32(8)))), scale))


@kernel()
def _scales(rec: int, geom: Any, t: int, n: int, first: int, out: int) -> None:
    """float32 scales of tokens t..t+n-1 (rounded up to 8) for the group of dim `first`."""
    p = rec + geom[SCALE_AT] + 2 * (first // geom[GROUP] * geom[BLOCK] + t)
    for i in range(0, n, 8):
        store_f(out + 4 * i, low_half(load_u16x8(p + 2 * i)))


@kernel()
def lift_k(rec: int, geom: Any, table: int, t: int, dims: int, panel: int, square: int) -> None:
    """Tokens t..t+15 of all dims to a K panel. Addresses: record, codec table, panel, 512 bytes of scratch."""
    for half in range(2):
        t8, out = t + 8 * half, panel + 32 * half
        if geom[FAMILY] != LLOYD_:
            _dims_major(rec, geom, t8, 0, dims, out, STEP)
            continue
        values, row = load_f(table), geom[STORED] // 8 * 3
        for first in range(0, dims, 8):
            _scales(rec, geom, t8, 8, first, square + 256)
            for i in range(8):
                store_f(square + 32 * i, table8(values, rec + (t8 + i) * row + first // 8 * 3))
            transpose8(square, 32, out + first * STEP, STEP)
            scale = load_f(square + 256)
            for i in range(8):
                p = out + (first + i) * STEP
                store_f(p, mul_f(load_f(p), scale))


@kernel()
def lift_v(rec: int, geom: Any, table: int, t: int, n: int, first: int, panel: int, square: int) -> None:
    """Dims first..first+15 of tokens t..t+n-1 to a V panel (rounded up to 8 tokens). `square`: 512 bytes of scratch."""
    if geom[FAMILY] != LLOYD_:
        for i in range(0, n, 8):
            _dims_major(rec, geom, t + i, first, first + 16, square, 32)
            transpose8(square, 32, panel + i * STEP, STEP)
            transpose8(square + 256, 32, panel + i * STEP + 32, STEP)
        return
    _scales(rec, geom, t, n, first, square)
    values, row = load_f(table), geom[STORED] // 8 * 3
    codes = rec + t * row + first // 8 * 3
    for i in range(n):
        scale = splat_f(get_f32(square + 4 * i))
        store_f(panel + i * STEP, mul_f(table8(values, codes + i * row), scale))
        store_f(panel + i * STEP + 32, mul_f(table8(values, codes + i * row + 3), scale))
