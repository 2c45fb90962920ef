"""Codes of pieces of 8 tokens -> panels of 16 columns, the right operand of the two products of attention.

    K panel   16 tokens side by side, so that scores are q x panel.
              Plain and rotated types: float32 [D', 16], scales included. Scalar types are multiplied as integers and
              need none (`lift_quads`), nor do those with long tables (`lift_planes`).
    V panel   float32 [n, 16], 16 dims side by side, so that outputs are weights x panel; without scales, which belong
              to tokens and so go to the weights (`attend_values`). Three-bit levels of many rows become integers
              (`lift_levels`), and scalar types always (`lift_pairs`).

A panel is 2 to 32 KiB and is used while it is in the L1 cache; its values are exactly the stored ones (rotated space
for rotated codecs). Eight tokens at a time, wherever their record is: panels, and so the sums over them, know nothing
of blocks.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import BF16_, BITS, BLOCK, FAMILY, GROUP, LLOYD_, PIECE, ROW, SCALE_AT, STREAM, TRELLIS_
from polykv.fast.cpu.lift_columns import STEP, columns16, half8, upper_lines
from polykv.fast.cpu.lift_columns import WIDTH as WIDTH
from polykv.fast.cpu.lift_long import in_words, words_v
from polykv.fast.cpu.lift_simd import transpose8
from polykv.fast.cpu.lift_stream import stream_lines, stream_square
from polykv.fast.cpu.simd import get_i64


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
    if geom[FAMILY] == LLOYD_:
        _squares(rec, t, geom, table, dims, panel)
        _squares(rec8, t8, geom, table, dims, panel + 32)
        return
    for d in range(0, dims, WIDTH):
        columns16(rec, t, geom, d, panel + d * STEP)
        columns16(rec8, t8, geom, d, panel + d * STEP + 32)


@kernel()
def lift_v(rec: int, first: int, pieces: int, geom: Any, table: int, dim: int, panel: int, square: int) -> None:
    """Dims dim..dim+15 of the tokens of some pieces to a V panel.

    Addresses: int64 per piece, its record and its first token there (one piece more when their number is odd); table of
    the codec, panel, 1024 bytes of scratch.
    """
    if geom[FAMILY] in (LLOYD_, TRELLIS_):
        group, row = geom[GROUP], geom[ROW]
        offset = dim // group * geom[STREAM] + dim % group // 8 * geom[BITS]
        if in_words(geom):
            words_v(rec, first, pieces, geom, table, offset, panel)
            return
        for i in range(0, 8 * pieces, 8):
            stream_lines(geom, get_i64(rec + i) + offset + get_i64(first + i) * row, table, panel)
            panel += PIECE * STEP
        return
    if geom[FAMILY] == BF16_:
        for i in range(0, 8 * pieces, 8):
            at = get_i64(rec + i) + 2 * (dim * geom[BLOCK] + get_i64(first + i))
            upper_lines(at, 2 * geom[BLOCK], panel)
            panel += PIECE * STEP
        return
    for i in range(0, 8 * pieces, 16):
        columns16(get_i64(rec + i), get_i64(first + i), geom, dim, square)
        columns16(get_i64(rec + i + 8), get_i64(first + i + 8), geom, dim, square + 32)
        for half in range(2):
            transpose8(square + 32 * half, STEP, panel, STEP)
            transpose8(square + 32 * half + 8 * STEP, STEP, panel + 32, STEP)
            panel += PIECE * STEP


@kernel()
def scales8(rec: int, t: int, geom: Any, group: int) -> Any:
    """The scales of 8 tokens from t of a record, for one group of dims."""
    return half8(rec + geom[SCALE_AT] + 2 * (group * geom[BLOCK] + t))
