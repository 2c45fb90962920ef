"""Scores of one unit of 64 keys: queries times codes, or times panels of lifted keys."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_query import in_integers
from polykv.fast.cpu.attend_softmax import ROW
from polykv.fast.cpu.attend_tile import scores3, scores4
from polykv.fast.cpu.attend_tile_k import WIDE, keys3, keys4, keys4_more
from polykv.fast.cpu.attend_unit import (
    CODES,
    FACTOR,
    FIRST,
    K_DIMS,
    K_GEOM,
    K_TABLE,
    NEXT_K,
    Q_ROWS,
    QUERIES,
    REC_K,
    S_ROWS,
    SCORES,
    fetch,
    panels,
)
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.kv_layout import BLOCK, FAMILY, GEOM, PIECE, Q8_0_, SCALE_AT, STORED
from polykv.fast.cpu.lift import WIDTH, lift_k
from polykv.fast.cpu.lift_quads import lift_quads
from polykv.types import UNIT


@kernel(inlined=True)
def score_unit(d: Any, work: int, n: int, span: Any, padded: int) -> None:
    """Scores of `padded` rows (3, or fours) with tokens 0..n-1 of the unit that the descriptor d at `work` names."""
    q_rows = longs(d[Q_ROWS], padded)
    for i in range(padded):
        q_rows[i] = d[QUERIES] + 4 * d[K_DIMS] * span[0, i]
    if in_integers(longs(d[K_GEOM], GEOM)):
        _score_integers(d, work, n, padded)
    else:
        _score_floats(d, n, padded)


@kernel(inlined=True)
def _score_integers(d: Any, work: int, n: int, rows: int) -> None:
    """Scores with the codes themselves."""
    geom, pieces = longs(d[K_GEOM], GEOM), -(-n // PIECE)
    groups, at, block = geom[STORED] // 32, geom[SCALE_AT], geom[BLOCK]
    if geom[FAMILY] == Q8_0_:
        step = 4 * block
        for i in range(UNIT // PIECE):
            d[CODES + i] = d[REC_K + i] + 4 * d[FIRST + i]
    else:
        step, (panel, _, _) = 4 * PIECE, panels(d)
        for i in range(pieces):
            d[CODES + i] = panel + PIECE * geom[STORED] * i
            lift_quads(d[REC_K + i], d[FIRST + i], geom, d[CODES + i])
        for i in range(pieces, UNIT // PIECE):
            d[CODES + i] = panel
    codes, records, first, near = work + 8 * CODES, work + 8 * REC_K, work + 8 * FIRST, work + 8 * NEXT_K
    # Pieces beyond the last may be any that can be read: their scores are hidden.
    if rows == 3:
        for i in range(0, 8 * pieces, 8 * WIDE):
            s = d[SCORES] + 4 * i
            keys3(d[Q_ROWS], groups, codes + i, step, records + i, first + i, at, block, s, ROW, near + i)
        return
    for i in range(0, 8 * pieces, 16):
        s = d[SCORES] + 4 * i
        keys4(d[Q_ROWS], groups, codes + i, step, records + i, first + i, at, block, s, ROW, near + i)
        for r in range(4, rows, 4):
            q = d[Q_ROWS] + 8 * r
            keys4_more(q, groups, codes + i, step, records + i, first + i, at, block, s + ROW * r, ROW, near + i)


@kernel()
def _score_floats(d: Any, n: int, rows: int) -> None:
    """Scores with panels."""
    s_rows = longs(d[S_ROWS], rows)
    for i in range(rows):
        s_rows[i] = d[SCORES] + ROW * i
    panel, second, square = panels(d)
    geom = longs(d[K_GEOM], GEOM)
    step = 2 * WIDTH if rows == 3 else WIDTH
    for t in range(0, n, step):
        i = t // PIECE
        _lift(d, geom, i, panel, square)
        if rows == 3:
            _lift(d, geom, i + 2, second, square)
            scores3(d[Q_ROWS], d[K_DIMS], panel, second - panel, d[S_ROWS], 4 * t, d[FACTOR])
        else:
            for r in range(0, rows, 4):
                scores4(d[Q_ROWS] + 8 * r, d[K_DIMS], panel, 0, d[S_ROWS] + 8 * r, 4 * t, d[FACTOR])


@kernel()
def _lift(d: Any, geom: Any, i: int, panel: int, square: int) -> None:
    """Pieces i and i + 1 to a panel."""
    rec, t, rec8, t8 = d[REC_K + i], d[FIRST + i], d[REC_K + i + 1], d[FIRST + i + 1]
    fetch(d, NEXT_K, geom, i * PIECE // WIDTH, UNIT // WIDTH)
    lift_k(rec, t, rec8, t8, geom, d[K_TABLE], d[K_DIMS], panel, square)
