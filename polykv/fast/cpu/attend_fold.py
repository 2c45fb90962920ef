"""Fold one unit of 64 keys into the states of some rows, called by address with a descriptor of its working memory."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_keys import score_unit
from polykv.fast.cpu.attend_means import add_means
from polykv.fast.cpu.attend_softmax import ROW, cap_row, fold_tile3, fold_tile4, hide_cells
from polykv.fast.cpu.attend_unit import CAP, FACTOR, FIELDS, K_GEOM, MAX, ROWS, SCORES, SPAN, SUM, span_pitch
from polykv.fast.cpu.attend_values import add_unit
from polykv.fast.cpu.attend_views import ints, longs
from polykv.fast.cpu.kv_layout import GEOM, MEAN_AT
from polykv.fast.cpu.simd import get_f32
from polykv.types import UNIT


@kernel()
def fold_unit(work: int, skip: int, n: int, count: int) -> None:
    """Fold tokens skip..n-1 of a unit into `count` rows; span [:, i] = (row, first and one past last visible token).

    skip is a multiple of 8. Pieces outside skip..n-1 may be any that can be read: their scores are not used.
    """
    d = longs(work, FIELDS)
    rows = d[ROWS]
    span = ints(d[SPAN], (3, span_pitch(rows) // 4))
    padded = 3 if count <= 3 else (count + 3) // 4 * 4
    for i in range(count, max(padded, 4)):
        span[0, i], span[1, i], span[2, i] = rows, 0, UNIT
    score_unit(d, work, n, span, padded)
    k_geom = longs(d[K_GEOM], GEOM)
    if k_geom[MEAN_AT] > 0:
        add_means(d, k_geom, d[SCORES], span, count)
    _weights(d, span, get_f32(work + 8 * CAP), count, padded)
    add_unit(d, work, skip, n, span, padded)


@kernel(inlined=True)
def _weights(d: Any, span: Any, cap: Any, count: int, padded: int) -> None:
    """Scores to softmax weights; maxima, sums and factors of the rows."""
    s = d[SCORES]
    for i in range(count):
        if cap > 0:
            cap_row(s + ROW * i, cap)
        if span[1, i] > 0 or span[2, i] < UNIT:
            hide_cells(s + ROW * i, span[1, i], span[2, i])
    if padded == 3:
        fold_tile3(s, d[SPAN], d[MAX], d[SUM], d[FACTOR])
        return
    for i in range(0, padded, 4):
        fold_tile4(s + ROW * i, d[SPAN] + 4 * i, d[MAX], d[SUM], d[FACTOR] + 4 * i)
