"""Outputs with values of scalar types, whose codes are integers: softmax weights times scales, rounded, times codes.

Of types with minima a value is d (code - middle) + (m + middle d): the second part of all tokens makes one number for a
row and a group of dims.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_softmax import ROW
from polykv.fast.cpu.attend_tile_v import panel3_least, panel3_pair, panel4_least, panel4_pair
from polykv.fast.cpu.attend_unit import (
    A_ROWS,
    CODES,
    FACTOR,
    FIRST,
    NEXT_V,
    PAIRS,
    PANEL,
    REC_V,
    SCALES,
    SCORES,
    STEPS,
    V_DIMS,
    V_TABLE,
    WEIGHTS,
    fetch,
)
from polykv.fast.cpu.attend_weights import STEP_ROW, WEIGHT_ROW, round_tile3, round_tile4, token_scales
from polykv.fast.cpu.kv_layout import (
    BITS,
    BLOCK,
    FAMILY,
    MIN_AT,
    PIECE,
    Q4_1_,
    Q5_1_,
    Q8_0_,
    SCALE_AT,
    SHARE,
    STORED,
    WORTH,
)
from polykv.fast.cpu.lift_pairs import lift_pairs
from polykv.fast.cpu.lift_quads import lift_quads
from polykv.fast.cpu.simd import get_f32, get_i64, load_f, splat_f, store_f, sum_f
from polykv.fast.cpu.simd_math import add_f, fma
from polykv.types import UNIT

# Dims that share a scale.
GROUP = 32
ZERO, ONE = np.float32(0), np.float32(1)


@kernel(inlined=True)
def round_weights(d: Any, work: int, geom: Any, group: int, skip: int, n: int, rows: int) -> None:
    """The weights of all rows times the tokens' scales of a group of dims, as integers."""
    worth, share = get_f32(d[V_TABLE] + 4 * WORTH), get_f32(d[V_TABLE] + 4 * SHARE)
    at = geom[SCALE_AT] + 2 * group * geom[BLOCK]
    token_scales(d[SCALES], work + 8 * REC_V, work + 8 * FIRST, at, skip, n, worth)
    if rows == 3:
        round_tile3(d[SCORES], d[SCALES], share, d[WEIGHTS], d[STEPS])
        return
    for r in range(0, rows, 4):
        round_tile4(d[SCORES] + ROW * r, d[SCALES], share, d[WEIGHTS] + WEIGHT_ROW * r, d[STEPS] + STEP_ROW * r)


@kernel()
def add_scalars(d: Any, work: int, geom: Any, skip: int, n: int, rows: int) -> None:
    """acc = acc * factor + weights x values of tokens skip..n-1, for rows that are 3, or fours."""
    couples, dims = (skip // (2 * PIECE), -(-n // (2 * PIECE))), d[V_DIMS]
    step = _quads(d, geom, 2 * couples[0], 2 * couples[1])
    for begin in range(0, dims, GROUP):
        fetch(d, NEXT_V, geom, begin // GROUP, -(-dims // GROUP))
        round_weights(d, work, geom, begin // GROUP, skip, n, rows)
        width = min(GROUP, dims - begin)
        lift_pairs(work + 8 * CODES, begin // 4 * step, step, couples, width, d[PANEL])
        _multiply(d, couples, begin, width, rows)
        if geom[FAMILY] in (Q4_1_, Q5_1_):
            _add_minima(d, work, geom, begin, width, skip, n, rows)


@kernel()
def _quads(d: Any, geom: Any, first: int, last: int) -> Any:
    """Name where the quads of some pieces lie, in their records or unpacked; returns the bytes from quad to quad."""
    if geom[FAMILY] == Q8_0_:
        for i in range(first, last):
            d[CODES + i] = d[REC_V + i] + 4 * d[FIRST + i]
        return 4 * geom[BLOCK]
    for i in range(first, last):
        d[CODES + i] = d[PANEL] + PAIRS + PIECE * geom[STORED] * i
        lift_quads(d[REC_V + i], d[FIRST + i], geom, d[CODES + i])
    return 4 * PIECE


@kernel(inlined=True)
def _multiply(d: Any, couples: Any, dim: int, width: int, rows: int) -> None:
    w, steps, p, q, c, f, to = d[WEIGHTS], d[STEPS], couples[0], couples[1], d[A_ROWS], d[FACTOR], 4 * dim
    if rows == 3:
        if width == GROUP:
            panel3_pair(w, steps, p, q, d[PANEL], c, to, f)
        else:
            panel3_least(w, steps, p, q, d[PANEL], c, to, f)
        return
    for _ in range(0, rows, 4):
        if width == GROUP:
            panel4_pair(w, steps, p, q, d[PANEL], c, to, f)
        else:
            panel4_least(w, steps, p, q, d[PANEL], c, to, f)
        w, steps, c, f = w + 4 * WEIGHT_ROW, steps + 4 * STEP_ROW, c + 32, f + 16


@kernel()
def _add_minima(d: Any, work: int, geom: Any, begin: int, width: int, skip: int, n: int, rows: int) -> None:
    """Add the weights times what the tokens' codes are counted from."""
    records, first, middle = work + 8 * REC_V, work + 8 * FIRST, splat_f(np.float32(8 << (geom[BITS] - 4)))
    # The scales have done their work.
    low, scales = d[PANEL], d[SCALES]
    token_scales(low, records, first, geom[MIN_AT] + 2 * (begin // GROUP) * geom[BLOCK], skip, n, ONE)
    for t in range(0, 4 * UNIT, 32):
        store_f(low + t, fma(load_f(scales + t), middle, load_f(low + t)))
    for r in range(rows):
        weights, total = d[SCORES] + ROW * r, splat_f(ZERO)
        for t in range(0, 4 * UNIT, 32):
            total = fma(load_f(weights + t), load_f(low + t), total)
        more, row = splat_f(sum_f(total)), get_i64(d[A_ROWS] + 8 * r) + 4 * begin
        for at in range(row, row + 4 * width, 32):
            store_f(at, add_f(load_f(at), more))
