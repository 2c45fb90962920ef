"""Outputs of one unit of 64 keys: softmax weights times values.

A scale belongs to a token (and a group of dims), so it multiplies the token's weights, once per row, instead of all the
values of the group. Rows that are few read the codes themselves; many share panels of lifted values.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_tile import codes3, codes4, outputs3, outputs4
from polykv.fast.cpu.attend_unit import (
    A_ROWS,
    ACC,
    FACTOR,
    FIRST,
    NEXT_V,
    REC_V,
    ROW,
    S_ROWS,
    SCORES,
    V_DIMS,
    V_GEOM,
    V_TABLE,
    WEIGHTS,
    fetch,
    panels,
)
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.kv_layout import BITS, FAMILY, GEOM, GROUP, LLOYD_, PIECE, STORED, WEIGHTED
from polykv.fast.cpu.lift import WIDTH, lift_v, scales8
from polykv.fast.cpu.simd import get_i64, load_f, store_f
from polykv.fast.cpu.simd_math import mul_f


@kernel()
def add_unit(d: Any, work: int, skip: int, n: int, span: Any, padded: int) -> None:
    """acc = acc * factor + weights x values of tokens skip..n-1, for `padded` rows (3, or fours)."""
    geom, dims = longs(d[V_GEOM], GEOM), d[V_DIMS]
    scaled = geom[WEIGHTED] != 0
    weights = d[WEIGHTS] if scaled else d[SCORES]
    # Four at least: the last 16 dims of three rows are a tile of four.
    filled = max(padded, 4)
    p_rows, a_rows = longs(d[S_ROWS], filled), longs(d[A_ROWS], filled)
    for i in range(filled):
        p_rows[i] = weights + ROW * i + 4 * skip
        a_rows[i] = d[ACC] + 4 * dims * span[0, i]
    records, first = work + 8 * REC_V + skip, work + 8 * FIRST + skip
    group = geom[GROUP] if scaled else dims
    for begin in range(0, dims, group):
        if scaled:
            _weigh(d, records, first, geom, begin // group, skip, n, padded)
        end = min(begin + group, dims)
        if geom[FAMILY] == LLOYD_ and geom[BITS] == 3 and padded <= 4:
            near = work + 8 * NEXT_V + skip
            _add_codes(d, records, first, near, geom, n - skip, begin, end, padded)
        else:
            fetch(d, NEXT_V, geom, begin // group, -(-dims // group))
            _add_panels(d, records, first, geom, n - skip, begin, end, padded)


@kernel()
def _weigh(d: Any, records: int, first: int, geom: Any, group: int, skip: int, n: int, rows: int) -> None:
    """The weights of all rows times the tokens' scales of a group of dims."""
    for t in range(skip, n, PIECE):
        scale = scales8(get_i64(records + t - skip), get_i64(first + t - skip), geom, group)
        for at in range(4 * t, 4 * t + ROW * rows, ROW):
            store_f(d[WEIGHTS] + at, mul_f(load_f(d[SCORES] + at), scale))


@kernel()
def _add_codes(d: Any, records: int, first: int, near: int, geom: Any, n: int, begin: int, end: int, rows: int) -> None:
    """Dims begin..end-1 from three-bit codes."""
    width, table, p_rows = geom[STORED] // 8 * 3, load_f(d[V_TABLE]), d[S_ROWS]
    for dim in range(begin, end, WIDTH):
        if rows == 3:
            codes3(p_rows, n, records, first, near, dim // 8 * 3, width, table, d[A_ROWS], 4 * dim, d[FACTOR])
        else:
            codes4(p_rows, n, records, first, near, dim // 8 * 3, width, table, d[A_ROWS], 4 * dim, d[FACTOR])


@kernel()
def _add_panels(d: Any, records: int, first: int, geom: Any, n: int, begin: int, end: int, rows: int) -> None:
    """Dims begin..end-1 from lifted panels."""
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
