"""Panels of types with long tables (8-bit and trellis codes), where the processor looks levels up in registers."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import BITS, BLOCK, FAMILY, GROUP, LLOYD_, PREFIX, ROW, SCALE_AT, STREAM, TRELLIS_
from polykv.fast.cpu.lift_columns import STEP, half8
from polykv.fast.cpu.lift_words import (
    HAS_WORDS,
    tokens16_2,
    tokens16_3,
    tokens16_8,
    values16_2,
    values16_3,
    values16_8,
)


@kernel()
def in_words(geom: Any) -> Any:
    """Whether panels of this layout are made here."""
    return HAS_WORDS and geom[FAMILY] in (LLOYD_, TRELLIS_) and geom[BITS] + geom[PREFIX] >= 8


@kernel()
def words_k(rec: int, t: int, rec8: int, t8: int, geom: Any, table: int, dims: int, out: int) -> None:
    """All dims of 8 tokens from t of a record, and of 8 from t8 of another, to a K panel of floats."""
    group, bits, prefix, row = geom[GROUP], geom[BITS], geom[PREFIX], geom[ROW]
    for i in range(dims // group):
        p, q = rec + t * row + i * geom[STREAM], rec8 + t8 * row + i * geom[STREAM]
        at = geom[SCALE_AT] + 2 * i * geom[BLOCK]
        scale, scale8 = half8(rec + at + 2 * t), half8(rec8 + at + 2 * t8)
        if prefix == 0:
            tokens16_8(p, q, row, group, table, scale, scale8, out)
        elif bits == 3:
            tokens16_3(p, q, row, group, table, scale, scale8, out)
        else:
            tokens16_2(p, q, row, group, table, scale, scale8, out)
        out += group * STEP


@kernel()
def words_v(rec: int, first: int, pieces: int, geom: Any, table: int, offset: int, out: int) -> None:
    """16 values of the tokens of some pieces, whose codes lie at `offset` of a token's row, to a V panel."""
    if geom[PREFIX] == 0:
        values16_8(rec, first, pieces, offset, geom[ROW], table, out)
    elif geom[BITS] == 3:
        values16_3(rec, first, pieces, offset, geom[ROW], table, out)
    else:
        values16_2(rec, first, pieces, offset, geom[ROW], table, out)
