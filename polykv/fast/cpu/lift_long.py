"""Panels of values of types with long tables (8-bit and trellis codes), looked up in registers."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import BITS, FAMILY, LLOYD_, PREFIX, ROW, TRELLIS_
from polykv.fast.cpu.lift_words import HAS_WORDS, values16_2, values16_3, values16_8


@kernel()
def in_words(geom: Any) -> Any:
    """Whether panels of values of this layout are made here."""
    return HAS_WORDS and geom[FAMILY] in (LLOYD_, TRELLIS_) and geom[BITS] + geom[PREFIX] >= 8


@kernel()
def words_v(rec: int, first: int, pieces: int, geom: Any, table: int, offset: int, out: int) -> None:
    """16 values of the tokens of some pieces, whose codes lie at `offset` of a token's row, to a V panel."""
    if geom[PREFIX] == 0:
        values16_8(rec, first, pieces, offset, geom[ROW], table, out)
    elif geom[BITS] == 3:
        values16_3(rec, first, pieces, offset, geom[ROW], table, out)
    else:
        values16_2(rec, first, pieces, offset, geom[ROW], table, out)
