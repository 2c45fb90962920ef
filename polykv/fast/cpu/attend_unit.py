"""The working memory of one worker of attention, as kernels called by address see it: a descriptor of int64 addresses
and counts at its start, then the arrays."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_query import query_floats
from polykv.fast.cpu.attend_views import floats, longs
from polykv.fast.cpu.attend_weights import STEP_ROW
from polykv.fast.cpu.kv_layout import BLOCK, CORE, DIM, GEOM, PIECE, RECORD, STORED
from polykv.fast.cpu.lift import WIDTH
from polykv.fast.cpu.simd import prefetch, put_f32
from polykv.types import UNIT

# CAP holds a float32; the next two lines are arrays, see `_parts`.
K_GEOM, K_TABLE, V_GEOM, V_TABLE, ROWS, K_DIMS, V_DIMS, CAP = range(8)
Q_ROWS, S_ROWS, A_ROWS, QUERIES, SCORES, WEIGHTS, STEPS, SCALES = range(8, 16)
ACC, MAX, SUM, FACTOR, PANEL, SPAN, ARRAYS = range(16, 23)
# The unit to fold, in pieces of 8 tokens: addresses of their records of K and of V, first token there. One piece more
# than a unit has, because some are lifted in pairs, the first of which may be any.
PIECES, REC_K, REC_V, FIRST = 9, 24, 33, 42
# Where the codes of integer keys of a piece are: in its record, or unpacked.
CODES = 51
# What will be read next, piece by piece: addresses of each one's share of its record.
NEXT_K, NEXT_V = 59, 67
# Zeros, the first tokens of unpacked pieces.
ZEROS = 75
FIELDS = 80
# Bytes of 32 dims of the values of a unit as pairs of int16 (`lift_pairs`).
PAIRS = 64 * UNIT


@kernel()
def width_of(geom: Any) -> Any:
    """Dims of the values that attention computes with, in whole panels: true ones, or all stored ones when they are
    rotated together."""
    return _whole(geom[STORED] if geom[CORE] > 0 else geom[DIM])


@kernel()
def _whole(n: int) -> Any:
    """n dims or rows, filled up to whole panels."""
    return -(-n // WIDTH) * WIDTH


@kernel()
def span_pitch(rows: int) -> Any:
    """Bytes from row to row of `span`, int32 [3, rows + 4]."""
    return 4 * (rows + 4)


@kernel()
def _panel(dk: int, v_geom: Any) -> Any:
    """Floats of PANEL: two panels and scratch, or what values of scalar types become (`attend_scalars`): pairs of 32
    dims and quads, which are many where rotated values are filled up to 128 and keys are not."""
    return max(2 * _whole(max(dk, UNIT)) * WIDTH + 256, PAIRS // 4 + UNIT * v_geom[STORED] // 4)


@kernel()
def _parts(rows: int, dk: int, dv: int, panel: int) -> Any:
    """Floats of each array, from Q_ROWS to SPAN.

    The first three are addresses of the rows in work: of queries, of scores or weights, of sums. Rows are computed in
    fours (or three alone). What fills them up is the zero query, row `rows`, whose result nobody reads.
    """
    return (
        2 * (rows + 4),
        2 * (rows + 4),
        2 * (rows + 4),
        (rows + 1) * dk,
        (rows + 4) * UNIT,
        (rows + 4) * UNIT,
        (rows + 4) * STEP_ROW // 4,
        UNIT,
        (rows + 1) * dv,
        rows + 1,
        rows + 1,
        rows + 4,
        panel,
        3 * span_pitch(rows) // 4,
    )


@kernel()
def _lines(nbytes: int) -> Any:
    """nbytes in whole cache lines: vectors that lie across two cost twice."""
    return -(-nbytes // 64) * 64


@kernel()
def work_bytes(rows: int, k_geom: Any, v_geom: Any) -> Any:
    """Memory of one worker for tiles of so many rows (query heads of one kv head counted as rows)."""
    size = _lines(8 * FIELDS)
    dk = query_floats(k_geom)
    for part in _parts(rows, dk, width_of(v_geom), _panel(dk, v_geom)):
        size += _lines(4 * part)
    return size


@kernel()
def lay_out(work: int, rows: int, k: Any, v: Any, cap: Any) -> Any:
    """Write the descriptor at `work`; k, v: addresses of geom and table. Returns q, acc, m, l as arrays."""
    d = longs(work, FIELDS)
    dk, dv = query_floats(longs(k[0], GEOM)), width_of(longs(v[0], GEOM))
    d[K_GEOM], d[K_TABLE], d[V_GEOM], d[V_TABLE] = k[0], k[1], v[0], v[1]
    d[ROWS], d[K_DIMS], d[V_DIMS] = rows, dk, dv
    put_f32(work + 8 * CAP, cap)
    d[ZEROS:] = 0
    at = work + _lines(8 * FIELDS)
    parts = _parts(rows, dk, dv, _panel(dk, longs(v[0], GEOM)))
    for i in range(ARRAYS - Q_ROWS):
        d[Q_ROWS + i] = at
        at += _lines(4 * parts[i])
    shape = rows + 1
    return (
        floats(d[QUERIES], (shape, dk)),
        floats(d[ACC], (shape, dv)),
        floats(d[MAX], shape),
        floats(d[SUM], shape),
    )


@kernel()
def panels(d: Any) -> Any:
    """Addresses of two panels and of 1024 bytes of scratch."""
    size = 4 * _whole(max(d[K_DIMS], UNIT)) * WIDTH
    return d[PANEL], d[PANEL] + size, d[PANEL] + 2 * size


@kernel()
def pieces_per_record(geom: Any) -> Any:
    """Pieces of a unit that lie in one record."""
    return max(1, min(geom[BLOCK], UNIT) // PIECE)


@kernel()
def fetch(d: Any, shares: int, geom: Any, part: int, parts: int) -> None:
    """Bring one part of the next unit near: small blocks lie scattered, which the processor does not foresee.

    shares: NEXT_K or NEXT_V. Where a unit is short work, its kernels ask line by line instead (`keys_product`,
    `codes_product`): what is asked for in one burst fills the queue of outstanding loads and holds up the core.
    """
    size = -(-geom[RECORD] // pieces_per_record(geom))
    count = UNIT // PIECE
    for i in range(part * count // parts, (part + 1) * count // parts):
        for at in range(0, size, 64):
            prefetch(d[shares + i] + at)
