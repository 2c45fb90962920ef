"""Scores of one unit of 64 keys: lift the codes, multiply by the queries."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_query import in_pairs
from polykv.fast.cpu.attend_tile import WIDE_PAIRS, pairs3, pairs4, scores3, scores4
from polykv.fast.cpu.attend_unit import (
    FACTOR,
    FIRST,
    K_DIMS,
    K_GEOM,
    K_TABLE,
    NEXT_K,
    Q_ROWS,
    QUERIES,
    REC_K,
    ROW,
    S_ROWS,
    SCORES,
    fetch,
    panels,
)
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.kv_layout import GEOM, PIECE, STORED
from polykv.fast.cpu.lift import WIDTH, lift_k, lift_pairs
from polykv.types import UNIT


@kernel()
def score_unit(d: Any, n: int, span: Any, padded: int) -> None:
    """Scores of `padded` rows (3, or fours) with tokens 0..n-1 of the unit that the descriptor d names."""
    q_rows, s_rows = longs(d[Q_ROWS], padded), longs(d[S_ROWS], padded)
    for i in range(padded):
        q_rows[i] = d[QUERIES] + 4 * d[K_DIMS] * span[0, i]
        s_rows[i] = d[SCORES] + ROW * i
    panel, second, square = panels(d)
    geom, few = longs(d[K_GEOM], GEOM), padded == 3
    wide = few and (WIDE_PAIRS or not in_pairs(geom))
    step = 2 * WIDTH if wide else WIDTH
    for t in range(0, n, step):
        i = t // PIECE
        _lift(d, geom, i, panel, square)
        if wide:
            _lift(d, geom, i + 2, second, square)
        if in_pairs(geom):
            groups = geom[STORED] // 32
            if few:
                pairs3(d[Q_ROWS], groups, panel, second - panel, d[SCORES] + 4 * t, ROW)
            else:
                for r in range(0, padded, 4):
                    pairs4(d[Q_ROWS] + 8 * r, groups, panel, 0, d[SCORES] + ROW * r + 4 * t, ROW)
        elif few:
            scores3(d[Q_ROWS], d[K_DIMS], panel, second - panel, d[S_ROWS], 4 * t, d[FACTOR])
        else:
            for r in range(0, padded, 4):
                scores4(d[Q_ROWS] + 8 * r, d[K_DIMS], panel, 0, d[S_ROWS] + 8 * r, 4 * t, d[FACTOR])


@kernel()
def _lift(d: Any, geom: Any, i: int, panel: int, square: int) -> None:
    """Pieces i and i + 1 to a panel."""
    rec, t, rec8, t8 = d[REC_K + i], d[FIRST + i], d[REC_K + i + 1], d[FIRST + i + 1]
    if in_pairs(geom):
        lift_pairs(rec, t, rec8, t8, geom, panel, d[NEXT_K + i], d[NEXT_K + i + 1])
    else:
        fetch(d, NEXT_K, geom, i * PIECE // WIDTH, UNIT // WIDTH)
        lift_k(rec, t, rec8, t8, geom, d[K_TABLE], d[K_DIMS], panel, square)
