"""Fold one unit of 64 keys into the states of some rows, called by address with a descriptor of its working memory."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_product import outputs, outputs3, scores, scores3
from polykv.fast.cpu.attend_softmax import fold_row
from polykv.fast.cpu.attend_views import floats, ints, longs
from polykv.fast.cpu.encode_row import LLOYD_
from polykv.fast.cpu.kv_layout import DIM, FAMILY, GEOM, PIECE, STORED
from polykv.fast.cpu.lift import WIDTH, lift_k, lift_v
from polykv.fast.cpu.simd import get_f32, put_f32
from polykv.types import UNIT

# The descriptor: int64 addresses and counts at the start of a worker's memory. `CAP` holds a float32.
K_GEOM, K_TABLE, V_GEOM, V_TABLE, QUERIES, SCORES, ACC, MAX, SUM, FACTOR, PANEL, SPAN, ROWS, K_DIMS, V_DIMS, CAP = (
    range(16)
)
# The unit to fold, in pieces of 8 tokens: addresses of their records of K and of V, first token there. One piece more
# than a unit has, because some are lifted in pairs, the first of which may be any.
PIECES, REC_K, REC_V, FIRST = 9, 16, 25, 34
FIELDS = 43


@kernel()
def width_of(geom: Any) -> Any:
    """Dims that attention computes with: true ones, or all stored ones when they are rotated together."""
    return geom[STORED] if geom[FAMILY] == LLOYD_ else geom[DIM]


@kernel()
def _parts(rows: int, dk: int, dv: int) -> Any:
    """Floats of each part, from QUERIES to SPAN. One row more than needed: the zero query that fills up fours."""
    return (
        (rows + 1) * dk,
        (rows + 4) * UNIT,
        (rows + 1) * dv,
        rows + 1,
        rows + 1,
        rows + 4,
        2 * max(dk, UNIT) * WIDTH + 256,
        3 * (rows + 4),
    )


@kernel()
def work_bytes(rows: int, k_geom: Any, v_geom: Any) -> Any:
    """Memory of one worker for tiles of so many rows (query heads of one kv head counted as rows)."""
    return 8 * FIELDS + 4 * sum(_parts(rows, width_of(k_geom), width_of(v_geom)))


@kernel()
def lay_out(work: int, rows: int, k: Any, v: Any, cap: Any) -> Any:
    """Write the descriptor at `work`; k, v: addresses of geom and table. Returns q, acc, m, l, span as arrays."""
    d = longs(work, FIELDS)
    dk, dv = width_of(longs(k[0], GEOM)), width_of(longs(v[0], GEOM))
    d[K_GEOM], d[K_TABLE], d[V_GEOM], d[V_TABLE] = k[0], k[1], v[0], v[1]
    d[ROWS], d[K_DIMS], d[V_DIMS] = rows, dk, dv
    put_f32(work + 8 * CAP, cap)
    at = work + 8 * FIELDS
    parts = _parts(rows, dk, dv)
    for i in range(8):
        d[QUERIES + i] = at
        at += 4 * parts[i]
    shape = rows + 1
    return (
        floats(d[QUERIES], (shape, dk)),
        floats(d[ACC], (shape, dv)),
        floats(d[MAX], shape),
        floats(d[SUM], shape),
        ints(d[SPAN], (3, rows + 4)),
    )


@kernel()
def fold_unit(work: int, skip: int, n: int, count: int) -> None:
    """Fold tokens skip..n-1 of a unit into `count` rows; span [:, i] = (row, first and one past last visible token).

    skip is a multiple of 8. Pieces outside skip..n-1 may be any that can be read: their scores are not used.
    """
    d = longs(work, FIELDS)
    rows, dk, dv = d[ROWS], d[K_DIMS], d[V_DIMS]
    q, s, acc = floats(d[QUERIES], (rows + 1, dk)), floats(d[SCORES], (rows + 4, UNIT)), floats(d[ACC], (rows + 1, dv))
    m, l, factor = floats(d[MAX], rows + 1), floats(d[SUM], rows + 1), floats(d[FACTOR], rows + 4)
    span, cap = ints(d[SPAN], (3, rows + 4)), get_f32(work + 8 * CAP)
    k_geom, v_geom = longs(d[K_GEOM], GEOM), longs(d[V_GEOM], GEOM)
    panel = d[PANEL]
    second = panel + 4 * max(dk, UNIT) * WIDTH
    square = second + 4 * max(dk, UNIT) * WIDTH
    few = count <= 3
    padded = (count + 3) // 4 * 4
    # Rows are computed four at a time; the missing ones are the zero query, whose result nobody reads.
    for i in range(count, padded):
        span[0, i] = rows
        factor[i] = 0
        s[i] = 0
    for t in range(0, n, 2 * WIDTH if few else WIDTH):
        i = t // PIECE
        lift_k(d[REC_K + i], d[FIRST + i], d[REC_K + i + 1], d[FIRST + i + 1], k_geom, d[K_TABLE], dk, panel, square)
        if few:
            i += 2
            lift_k(
                d[REC_K + i], d[FIRST + i], d[REC_K + i + 1], d[FIRST + i + 1], k_geom, d[K_TABLE], dk, second, square
            )
            scores3(q, span[0], dk, panel, second, s, t)
        else:
            scores(q, span[0], padded, dk, panel, s, t)
    for i in range(count):
        r = span[0, i]
        m[r], l[r], factor[i] = fold_row(s, i, span[1, i], span[2, i], cap, m[r], l[r])
    pieces, rec_v, first = -(-(n - skip) // PIECE), work + 8 * REC_V + skip, work + 8 * FIRST + skip
    for dim in range(0, dv, 2 * WIDTH if few else WIDTH):
        lift_v(rec_v, first, pieces, v_geom, d[V_TABLE], dim, panel, square)
        if few and dim + WIDTH < dv:
            lift_v(rec_v, first, pieces, v_geom, d[V_TABLE], dim + WIDTH, second, square)
            outputs3(s, skip, n, span[0], panel, second, factor, acc, dim)
        else:
            outputs(s, skip, n, span[0], padded, panel, factor, acc, dim)
