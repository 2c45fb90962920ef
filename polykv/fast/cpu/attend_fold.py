"""Fold one unit of 64 keys into the states of some rows, called by address with a descriptor of its working memory."""

from __future__ import annotations

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_keys import score_unit
from polykv.fast.cpu.attend_softmax import fold_row
from polykv.fast.cpu.attend_unit import CAP, FACTOR, FIELDS, MAX, ROWS, SCORES, SPAN, SUM
from polykv.fast.cpu.attend_values import add_unit
from polykv.fast.cpu.attend_views import floats, ints, longs
from polykv.fast.cpu.simd import get_f32
from polykv.types import UNIT


@kernel()
def fold_unit(work: int, skip: int, n: int, count: int) -> None:
    """Fold tokens skip..n-1 of a unit into `count` rows; span [:, i] = (row, first and one past last visible token).

    skip is a multiple of 8. Pieces outside skip..n-1 may be any that can be read: their scores are not used.
    """
    d = longs(work, FIELDS)
    rows, cap = d[ROWS], get_f32(work + 8 * CAP)
    s, factor, span = floats(d[SCORES], (rows + 4, UNIT)), floats(d[FACTOR], rows + 4), ints(d[SPAN], (3, rows + 4))
    m, l = floats(d[MAX], rows + 1), floats(d[SUM], rows + 1)
    padded = 3 if count <= 3 else (count + 3) // 4 * 4
    for i in range(count, max(padded, 4)):
        span[0, i], factor[i] = rows, 0
    score_unit(d, n, span, padded)
    for i in range(count):
        r = span[0, i]
        m[r], l[r], factor[i] = fold_row(s, i, span[1, i], span[2, i], cap, m[r], l[r])
    add_unit(d, work, skip, n, span, padded)
