"""Outputs of one unit of 64 keys: softmax weights times values.

A scale belongs to a token (and a group of dims), so it multiplies the token's weights, once per row, instead of all the
values of the group. Values are then panels of what is left of them (`lift`), but three-bit levels meet weights that are
integers too: rows that are few read the codes themselves, many share panels of integers. Codes of scalar types are
integers as well (`attend_scalars`).
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_scalars import add_scalars, round_weights
from polykv.fast.cpu.attend_softmax import ROW
from polykv.fast.cpu.attend_tile import outputs3, outputs4
from polykv.fast.cpu.attend_tile_v import codes3, codes3_least, codes4, codes4_least, panel4, panel4_least
from polykv.fast.cpu.attend_unit import (
    A_ROWS,
    ACC,
    FACTOR,
    FIRST,
    NEXT_V,
    REC_V,
    S_ROWS,
    SCORES,
    STEPS,
    V_DIMS,
    V_GEOM,
    V_TABLE,
    WEIGHTS,
    fetch,
    panels,
)
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.attend_weights import STEP_ROW, WEIGHT_ROW
from polykv.fast.cpu.kv_layout import BITS, FAMILY, GEOM, GROUP, LLOYD_, PIECE, SCALAR, STORED, WEIGHTED
from polykv.fast.cpu.kv_layout import ROW as TOKEN_ROW
from polykv.fast.cpu.lift import WIDTH, lift_v, scales8
from polykv.fast.cpu.lift_levels import LEAST, SLICE, lift_levels
from polykv.fast.cpu.simd import get_i64, load_f, store_f
from polykv.fast.cpu.simd_math import mul_f


@kernel(inlined=True)
def add_unit(d: Any, work: int, skip: int, n: int, span: Any, padded: int) -> None:
    """acc = acc * factor + weights x values of tokens skip..n-1, for `padded` rows (3, or fours)."""
    geom, dims = longs(d[V_GEOM], GEOM), d[V_DIMS]
    # Four at least: the last 16 dims of three rows are a tile of four.
    filled = max(padded, 4)
    a_rows = longs(d[A_ROWS], filled)
    for i in range(filled):
        a_rows[i] = d[ACC] + 4 * dims * span[0, i]
    if geom[FAMILY] == LLOYD_ and geom[BITS] == 3:
        _add_integers(d, work, geom, skip, n, padded)
    elif geom[FAMILY] in SCALAR:
        add_scalars(d, work, geom, skip, n, padded)
    else:
        _add_floats(d, work, geom, skip, n, padded)


@kernel(inlined=True)
def _add_integers(d: Any, work: int, geom: Any, skip: int, n: int, rows: int) -> None:
    """The same of three-bit levels."""
    dims, group, couples = geom[STORED], geom[GROUP], (skip // (2 * PIECE), -(-n // (2 * PIECE)))
    width = SLICE if group % SLICE == 0 else LEAST
    for begin in range(0, dims, group):
        round_weights(d, work, geom, begin // group, skip, n, rows)
        if rows > 4:
            fetch(d, NEXT_V, geom, begin // group, dims // group)
        for dim in range(begin, begin + group, width):
            if rows > 4:
                _add_panel(d, work, geom, couples, dim, width, rows)
            else:
                _add_codes(d, work, geom, couples, dim, width, rows)


@kernel(inlined=True)
def _add_codes(d: Any, work: int, geom: Any, couples: Any, dim: int, width: int, rows: int) -> None:
    """Dims dim .. dim + width - 1 from the codes."""
    records, first, near = work + 8 * REC_V, work + 8 * FIRST, work + 8 * NEXT_V
    w, steps, p, q, at, row = d[WEIGHTS], d[STEPS], couples[0], couples[1], dim // 8 * 3, geom[TOKEN_ROW]
    c, table, f, to = d[A_ROWS], d[V_TABLE], d[FACTOR], 4 * dim
    if width == SLICE:
        if rows == 3:
            codes3(w, steps, p, q, records, first, near, at, row, table, c, to, f)
        else:
            codes4(w, steps, p, q, records, first, near, at, row, table, c, to, f)
    elif rows == 3:
        codes3_least(w, steps, p, q, records, first, near, at, row, table, c, to, f)
    else:
        codes4_least(w, steps, p, q, records, first, near, at, row, table, c, to, f)


@kernel()
def _add_panel(d: Any, work: int, geom: Any, couples: Any, dim: int, width: int, rows: int) -> None:
    """The same from a panel of integers, for rows in fours."""
    panel, _, _ = panels(d)
    lift_levels(work + 8 * REC_V, work + 8 * FIRST, couples, geom, d[V_TABLE], dim, width, panel)
    w, steps, p, q, c, f = d[WEIGHTS], d[STEPS], couples[0], couples[1], d[A_ROWS], d[FACTOR]
    for _ in range(0, rows, 4):
        if width == SLICE:
            panel4(w, steps, p, q, panel, c, 4 * dim, f)
        else:
            panel4_least(w, steps, p, q, panel, c, 4 * dim, f)
        w, steps, c, f = w + 4 * WEIGHT_ROW, steps + 4 * STEP_ROW, c + 32, f + 16


@kernel()
def _add_floats(d: Any, work: int, geom: Any, skip: int, n: int, rows: int) -> None:
    """The same of all other types."""
    # Sums are as wide as whole panels, but there may be fewer dims, or more.
    scaled, dims, filled = geom[WEIGHTED] != 0, min(geom[STORED], d[V_DIMS]), max(rows, 4)
    weights, p_rows = d[WEIGHTS] if scaled else d[SCORES], longs(d[S_ROWS], filled)
    for i in range(filled):
        p_rows[i] = weights + ROW * i + 4 * skip
    records, first = work + 8 * REC_V + skip, work + 8 * FIRST + skip
    group = geom[GROUP] if scaled else dims
    for begin in range(0, dims, group):
        if scaled:
            _weigh(d, records, first, geom, begin // group, skip, n, rows)
        fetch(d, NEXT_V, geom, begin // group, -(-dims // group))
        _add_panels(d, records, first, geom, n - skip, begin, min(begin + group, dims), rows)


@kernel()
def _weigh(d: Any, records: int, first: int, geom: Any, group: int, skip: int, n: int, rows: int) -> None:
    """The weights of all rows times the tokens' scales of a group of dims."""
    for t in range(skip, n, PIECE):
        scale = scales8(get_i64(records + t - skip), get_i64(first + t - skip), geom, group)
        for at in range(4 * t, 4 * t + ROW * rows, ROW):
            store_f(d[WEIGHTS] + at, mul_f(load_f(d[SCORES] + at), scale))


@kernel()
def _add_panels(d: Any, records: int, first: int, geom: Any, n: int, begin: int, end: int, rows: int) -> None:
    """Dims begin..end-1, in whole panels, from lifted panels."""
    panel, second, square = panels(d)
    pieces, dim = -(-n // PIECE), begin
    while dim < end:
        lift_v(records, first, pieces, geom, d[V_TABLE], dim, panel, square)
        if rows == 3 and dim + WIDTH < end:
            lift_v(records, first, pieces, geom, d[V_TABLE], dim + WIDTH, second, square)
            outputs3(d[S_ROWS], n, panel, second - panel, d[A_ROWS], 4 * dim, d[FACTOR])
            dim += WIDTH
        else:
            for r in range(0, rows, 4):
                outputs4(d[S_ROWS] + 8 * r, n, panel, 0, d[A_ROWS] + 8 * r, 4 * dim, d[FACTOR] + 4 * r)
        dim += WIDTH
