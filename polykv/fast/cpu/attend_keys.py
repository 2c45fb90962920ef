"""Scores of one unit of 64 keys: queries times codes, or times panels of lifted keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_query import in_integers
from polykv.fast.cpu.attend_softmax import ROW
from polykv.fast.cpu.attend_tile import scores3, scores4
from polykv.fast.cpu.attend_tile_k import WIDE, keys3, keys3_more, keys4, keys4_more, minima3, minima4
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
    ZEROS,
    fetch,
    panels,
)
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.kv_layout import BITS, BLOCK, FAMILY, GEOM, MIN_AT, PIECE, Q4_1_, Q5_1_, Q8_0_, SCALE_AT, STORED
from polykv.fast.cpu.lift import WIDTH, lift_k
from polykv.fast.cpu.lift_planes import PLANE, in_planes, lift_planes, planes_of
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
    """Scores with codes."""
    geom = longs(d[K_GEOM], GEOM)
    if geom[FAMILY] == Q8_0_:
        _multiply_stored(d, work, geom, -(-n // PIECE), rows)
    else:
        _multiply_unpacked(d, work, geom, -(-n // PIECE), rows)
    if geom[FAMILY] in (Q4_1_, Q5_1_):
        _add_minima(d, work, geom, -(-n // PIECE), rows)


@kernel(inlined=True)
def _multiply_stored(d: Any, work: int, geom: Any, pieces: int, rows: int) -> None:
    """Scores with codes as they lie in their records."""
    groups, at, block = geom[STORED] // 32, geom[SCALE_AT], geom[BLOCK]
    for i in range(UNIT // PIECE):
        d[CODES + i] = d[REC_K + i] + 4 * d[FIRST + i]
    codes, records, first, near = work + 8 * CODES, work + 8 * REC_K, work + 8 * FIRST, work + 8 * NEXT_K
    # Pieces beyond the last may be any that can be read: their scores are hidden.
    if rows == 3:
        for i in range(0, 8 * pieces, 8 * WIDE):
            s = d[SCORES] + 4 * i
            keys3(d[Q_ROWS], groups, codes + i, 4 * block, records + i, first + i, at, block, s, ROW, near + i)
        return
    for i in range(0, 8 * pieces, 16):
        s = d[SCORES] + 4 * i
        keys4(d[Q_ROWS], groups, codes + i, 4 * block, records + i, first + i, at, block, s, ROW, near + i)
        for r in range(4, rows, 4):
            q = d[Q_ROWS] + 8 * r
            keys4_more(q, groups, codes + i, 4 * block, records + i, first + i, at, block, s + ROW * r, ROW, near + i)


@kernel(inlined=True)
def _multiply_unpacked(d: Any, work: int, geom: Any, pieces: int, rows: int) -> None:
    """The same after unpacking a few pieces at a time."""
    planes, wide = in_planes(geom), WIDE if rows == 3 else 2
    groups = planes_of(geom) if planes else geom[STORED] // 32
    codes, records, first, at, block = work + 8 * CODES, work + 8 * REC_K, work + 8 * FIRST, geom[SCALE_AT], geom[BLOCK]
    hop = 8
    if planes:
        # Scales lie behind the planes, of one piece at a time.
        records, first, at, block, hop = codes, work + 8 * ZEROS, PLANE * groups, PIECE, 0
    for i in range(0, pieces, wide):
        _unpack(d, geom, i, wide, planes)
        s, k, t = d[SCORES] + 4 * PIECE * i, 8 * i, first + hop * i
        if rows == 3:
            keys3_more(d[Q_ROWS], groups, codes + k, 4 * PIECE, records + k, t, at, block, s, ROW, codes)
            continue
        for r in range(0, rows, 4):
            q, to = d[Q_ROWS] + 8 * r, s + ROW * r
            keys4_more(q, groups, codes + k, 4 * PIECE, records + k, t, at, block, to, ROW, codes)


@kernel()
def _unpack(d: Any, geom: Any, i: int, count: int, planes: bool) -> None:
    """Codes of `count` pieces from i on to panels; what is read next is brought near."""
    fetch(d, NEXT_K, geom, i // count, UNIT // PIECE // count)
    (to, _, _), size = panels(d), PIECE * geom[STORED]
    if planes:
        size = (PLANE + 2 * PIECE) * planes_of(geom)
    for j in range(i, i + count):
        d[CODES + j] = to
        if planes:
            lift_planes(d[REC_K + j], d[FIRST + j], geom, d[K_TABLE], to)
        else:
            lift_quads(d[REC_K + j], d[FIRST + j], geom, to)
        to += size


@kernel(inlined=True)
def _add_minima(d: Any, work: int, geom: Any, pieces: int, rows: int) -> None:
    """What minima add to scores: each times the sum of the query's dims that it belongs to."""
    records, first, groups, block = work + 8 * REC_K, work + 8 * FIRST, geom[STORED] // 32, geom[BLOCK]
    at, low, middle = geom[SCALE_AT], geom[MIN_AT], np.float32(8 << (geom[BITS] - 4))
    for i in range(0, 8 * pieces, 16):
        q, s = d[Q_ROWS], d[SCORES] + 4 * i
        if rows == 3:
            minima3(q, groups, records + i, first + i, at, low, middle, block, s, ROW)
            continue
        for _ in range(0, rows, 4):
            minima4(q, groups, records + i, first + i, at, low, middle, block, s, ROW)
            q, s = q + 32, s + 4 * ROW


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
