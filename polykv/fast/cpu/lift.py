"""Codes of pieces of 8 tokens -> panels of 16 columns, the right operand of the two products of attention.

    K panel   16 tokens side by side, so that scores are q x panel.
              Plain and rotated types, and those with minima: float32 [D', 16], scales included.
              The others: per 32 dims 16 rows of int16 pairs (dims 2i and 2i + 1 of 16 tokens), then the 16 scales.
    V panel   float32 [n, 16], 16 dims side by side, so that outputs are weights x panel; without scales, which belong
              to tokens and so go to the weights (`attend_values`), but for types with minima.

A panel is 2 to 32 KiB and is used while it is in the L1 cache; its values are exactly the stored ones (rotated space
for rotated codecs). Eight tokens at a time, wherever their record is: panels, and so the sums over them, know nothing
of blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import (
    BITS,
    BLOCK,
    CORE,
    FAMILY,
    GROUP,
    HIGH_AT,
    IQ4_NL_,
    PIECE,
    Q4_0_,
    Q8_0_,
    ROW,
    SCALE_AT,
    STORED,
    STREAM,
)
from polykv.fast.cpu.lift_columns import STEP, columns16, half8
from polykv.fast.cpu.lift_columns import WIDTH as WIDTH
from polykv.fast.cpu.lift_long import in_words, words_k, words_v
from polykv.fast.cpu.lift_simd import pairs4, pairs8, pairs_iq4, pairs_upper, transpose8, upper_pairs
from polykv.fast.cpu.lift_stream import stream_lines, stream_square
from polykv.fast.cpu.simd import get_i64, load_i, prefetch, store_f, store_i

# Rows of pairs per group of 32 dims.
PAIRS = 16


@kernel()
def lift_pairs(rec: int, t: int, rec8: int, t8: int, geom: Any, out: int, near: int, near8: int) -> None:
    """8 tokens from t of a record of a type with signed codes, and 8 from t8 of another, to a K panel of pairs.

    As many bytes as are read are asked for from `near` and `near8`: what comes after these pieces.
    """
    block, family = geom[BLOCK], geom[FAMILY]
    for group in range(geom[STORED] // 32):
        if family == Q8_0_:
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
            near, near8 = _ask(near, near8)
            near, near8 = _ask(near, near8)
            if family in (Q4_0_, IQ4_NL_):
                _nibble_pairs(rec + 16 * group * block + t, family == Q4_0_, block, out)
                _nibble_pairs(rec8 + 16 * group * block + t8, family == Q4_0_, block, out + 32)
            else:
                near, near8 = _ask(near, near8)
                _pairs_with_upper(rec, t, geom, group, out)
                _pairs_with_upper(rec8, t8, geom, group, out + 32)
            out += PAIRS * STEP
        near, near8 = _ask(near, near8)
        at = geom[SCALE_AT] + 2 * group * block
        store_f(out, half8(rec + at + 2 * t))
        store_f(out + 32, half8(rec8 + at + 2 * t8))
        out += STEP


@kernel()
def _nibble_pairs(p: int, signed: bool, block: int, out: int) -> None:
    """32 dims of codes of 4 bits, less 8, or replaced by the values of IQ4_NL."""
    for shift in range(0, 8, 4):
        at = p
        for _ in range(PAIRS // 2):
            if signed:
                store_i(out, pairs4(at, at + block, np.int32(shift)))
            else:
                store_i(out, pairs_iq4(at, at + block, np.int32(shift)))
            at += 2 * block
            out += STEP


@kernel()
def _pairs_with_upper(rec: int, t: int, geom: Any, group: int, out: int) -> None:
    """32 dims of codes of 5 or 6 bits, less their middle."""
    block, extra = geom[BLOCK], geom[BITS] - 4
    word = rec + geom[HIGH_AT] + 4 * (group * extra * block + t)
    middle = np.int32(8 << extra)
    for half in range(2):
        # Upper bits of these 16 dims: half a word, or a whole one.
        upper = load_i(word + 4 * (half * (extra - 1) * block))
        first = 4 * half * (2 - extra)
        p = rec + 16 * group * block + t
        for j in range(0, WIDTH, 2):
            n = 8 * (j & 3) + extra * (first + (j >> 2))
            high = upper_pairs(upper, np.int32(n), np.int32(extra))
            store_i(out, pairs_upper(p, p + block, np.int32(4 * half), high, middle))
            p += 2 * block
            out += STEP


@kernel()
def _ask(near: int, near8: int) -> Any:
    """Ask for two cache lines; returns where the next ones are."""
    prefetch(near)
    prefetch(near8)
    return near + 64, near8 + 64


@kernel()
def _squares(rec: int, t: int, geom: Any, table: int, dims: int, out: int) -> None:
    """All dims of 8 tokens from t of a token-major record to halves of rows of 16 at `out`."""
    group, bits, row = geom[GROUP], geom[BITS], geom[ROW]
    scales = rec + geom[SCALE_AT] + 2 * t
    for i in range(dims // group):
        scale, codes = half8(scales), rec + t * row + i * geom[STREAM]
        scales += 2 * geom[BLOCK]
        for _ in range(0, group, 8):
            stream_square(geom, codes, table, scale, out)
            codes += bits
            out += 8 * STEP


@kernel()
def lift_k(rec: int, t: int, rec8: int, t8: int, geom: Any, table: int, dims: int, panel: int, square: int) -> None:
    """All dims of 8 tokens from t of a record, and of 8 from t8 of another, to a K panel of floats.

    Addresses: records, table of the codec, panel, 256 bytes of scratch.
    """
    if in_words(geom):
        words_k(rec, t, rec8, t8, geom, table, dims, panel)
        return
    if geom[CORE] > 0:
        _squares(rec, t, geom, table, dims, panel)
        _squares(rec8, t8, geom, table, dims, panel + 32)
        return
    for d in range(0, dims, WIDTH):
        columns16(rec, t, geom, table, d, panel + d * STEP)
        columns16(rec8, t8, geom, table, d, panel + d * STEP + 32)


@kernel()
def lift_v(rec: int, first: int, pieces: int, geom: Any, table: int, dim: int, panel: int, square: int) -> None:
    """Dims dim..dim+15 of the tokens of some pieces to a V panel.

    Addresses: int64 per piece, its record and its first token there (one piece more when their number is odd); table of
    the codec, panel, 1024 bytes of scratch.
    """
    if geom[CORE] > 0:
        group, row = geom[GROUP], geom[ROW]
        offset = dim // group * geom[STREAM] + dim % group // 8 * geom[BITS]
        if in_words(geom):
            words_v(rec, first, pieces, geom, table, offset, panel)
            return
        for i in range(0, 8 * pieces, 8):
            stream_lines(geom, get_i64(rec + i) + offset + get_i64(first + i) * row, table, panel)
            panel += PIECE * STEP
        return
    for i in range(0, 8 * pieces, 16):
        columns16(get_i64(rec + i), get_i64(first + i), geom, table, dim, square)
        columns16(get_i64(rec + i + 8), get_i64(first + i + 8), geom, table, dim, square + 32)
        for half in range(2):
            transpose8(square + 32 * half, STEP, panel, STEP)
            transpose8(square + 32 * half + 8 * STEP, STEP, panel + 32, STEP)
            panel += PIECE * STEP


@kernel()
def scales8(rec: int, t: int, geom: Any, group: int) -> Any:
    """The scales of 8 tokens from t of a record, for one group of dims."""
    return half8(rec + geom[SCALE_AT] + 2 * (group * geom[BLOCK] + t))
