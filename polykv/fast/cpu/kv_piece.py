"""Codes and scales of one group of 8 consecutive tokens to their cells, from the tile in which they were encoded.

What prompts are read with: vectors hold 8 tokens, as dims-major records do. The result is that of `group_to_cell`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_simd import put8, put_low
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
from polykv.fast.cpu.simd import load_i, splat_i, store_i, store_i8x8, store_u16x8
from polykv.fast.cpu.simd_math import field, join_i


@kernel()
def tile_to_cells(tile: int, scales: int, minima: int, geom: Any, rec: int, t: int, i: int) -> None:
    """Write group i of tokens t .. t + 7 of a record, lane by lane."""
    family, g, block = geom[FAMILY], geom[GROUP], geom[BLOCK]
    first = g * i * block + t
    if family == F32_:
        for j in range(g):
            store_i(rec + 4 * (first + j * block), load_i(tile + 32 * j))
        return
    if family in (F16_, BF16_):
        for j in range(g):
            store_u16x8(rec + 2 * (first + j * block), load_i(tile + 32 * j))
        return
    store_u16x8(rec + geom[SCALE_AT] + 2 * (i * block + t), load_i(scales))
    if family in (Q4_1_, Q5_1_):
        store_u16x8(rec + geom[MIN_AT] + 2 * (i * block + t), load_i(minima))
    if family in (LLOYD_, TRELLIS_):
        _streams(tile, g, geom[BITS], geom[PREFIX], rec + t * geom[ROW] + i * geom[STREAM], geom[ROW])
    elif family == Q8_0_:
        for j in range(0, g, 4):
            word, p = field(load_i(tile + 32 * j), np.int32(0), np.int32(255)), tile + 32 * j
            for k in range(1, 4):
                word = join_i(word, field(load_i(p + 32 * k), np.int32(0), np.int32(255)), np.int32(8 * k))
            store_i(rec + (g * i + j) * block + 4 * t, word)
    else:
        _nibbles(tile, geom, rec, t, i)


@kernel()
def _nibbles(tile: int, geom: Any, rec: int, t: int, i: int) -> None:
    block, extra = geom[BLOCK], geom[BITS] - 4
    for j in range(16):
        low, high = load_i(tile + 32 * j), load_i(tile + 32 * j + 512)
        store_i8x8(rec + (16 * i + j) * block + t, join_i(field(low, np.int32(0), np.int32(15)), high, np.int32(4)))
    if extra == 0:
        return
    count = 32 // extra
    for w in range(extra):
        word, p = splat_i(np.int32(0)), tile + 32 * count * w
        for j in range(count):
            upper = field(load_i(p + 32 * j), np.int32(4), np.int32(3))
            word = join_i(word, upper, np.int32(8 * (j & 3) + extra * (j >> 2)))
        store_i(rec + geom[HIGH_AT] + 4 * ((i * extra + w) * block + t), word)


@kernel()
def _streams(tile: int, g: int, bits: int, prefix: int, out: int, row: int) -> None:
    """Streams of 8 tokens, `row` bytes apart, each beginning with the `prefix` lowest bits of the first code."""
    held, mask = field(load_i(tile), np.int32(0), np.int32((1 << prefix) - 1)), np.int32((1 << bits) - 1)
    # What 8 lanes of 32 bits hold.
    count = min(8, 32 // bits)
    size = bits * count // 8
    for p in range(tile, tile + 32 * g, 32 * count):
        word = held
        for j in range(count):
            word = join_i(word, field(load_i(p + 32 * j), np.int32(prefix), mask), np.int32(bits * j + prefix))
        put8(out, row, word, size)
        out += size
        if prefix:
            held = field(word, np.int32(8 * size), np.int32((1 << prefix) - 1))
    if prefix:
        put_low(out, row, held)
