"""Scores of centered keys: what was coded is k less the mean of its unit, so <q, mean> is missing in all 64 scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_query import get_quads, in_integers
from polykv.fast.cpu.attend_softmax import ROW
from polykv.fast.cpu.attend_tile_k import QUERY_GROUP, SCALE_AT
from polykv.fast.cpu.attend_unit import K_DIMS, K_TABLE, QUERIES, REC_K
from polykv.fast.cpu.kv_layout import GROUP, MEAN_AT, MEAN_BLOCK, STORED, WORTH
from polykv.fast.cpu.lift_planes import in_planes
from polykv.fast.cpu.simd import get_f32, get_u16, load_f, load_i8x8, splat_f, store_f, sum_f
from polykv.fast.cpu.simd_math import add_f, fma, half_f, mul_f, to_f

ZERO = np.float32(0)


@kernel()
def _dot(q: int, mean: int, dims: int) -> Any:
    """<q, mean> of floats and blocks of q8_0."""
    total = splat_f(ZERO)
    for first in range(0, dims, 32):
        part = splat_f(ZERO)
        for j in range(0, min(32, dims - first), 8):
            part = fma(load_f(q + 4 * (first + j)), to_f(load_i8x8(mean + 2 + j)), part)
        total = fma(part, splat_f(half_f(get_u16(mean))), total)
        mean += MEAN_BLOCK
    return sum_f(total)


@kernel()
def _dot_integers(q: int, mean: int, groups: int) -> Any:
    """<q, mean> of a rounded query (`round_query`) and blocks of q8_0."""
    total = ZERO
    for i in range(groups):
        part, at = splat_f(ZERO), q + QUERY_GROUP * i
        for j in range(4):
            part = fma(get_quads(at, j), to_f(load_i8x8(mean + 2 + 8 * j)), part)
        total += sum_f(part) * (get_f32(at + SCALE_AT) * half_f(get_u16(mean)))
        mean += MEAN_BLOCK
    return total


@kernel()
def _dot_planes(q: int, mean: int, geom: Any, worth: Any) -> Any:
    """The same of a query for keys in planes (`round_for_planes`), whose scales are times `worth`."""
    group, total = geom[GROUP], ZERO
    for first in range(0, geom[STORED], group):
        for start in range(0, group, 32):
            # The second of two, whose scale is that of the query.
            q, part = q + QUERY_GROUP, splat_f(ZERO)
            for j in range(min(32, group - start) // 8):
                dim = first + start + 8 * j
                block = mean + dim // 32 * MEAN_BLOCK
                y = mul_f(to_f(load_i8x8(block + 2 + dim % 32)), splat_f(half_f(get_u16(block))))
                part = fma(get_quads(q, j), y, part)
            total += sum_f(part) * (get_f32(q + SCALE_AT) / worth)
            q += QUERY_GROUP
    return total


@kernel()
def add_means(d: Any, geom: Any, s: int, span: Any, count: int) -> None:
    """Add <q, mean> to the scores at s of `count` rows with the unit that the descriptor d names: one record."""
    mean = d[REC_K] + geom[MEAN_AT]
    for i in range(count):
        q = d[QUERIES] + 4 * d[K_DIMS] * span[0, i]
        if in_planes(geom):
            lacking = splat_f(_dot_planes(q, mean, geom, get_f32(d[K_TABLE] + 4 * WORTH)))
        elif in_integers(geom):
            lacking = splat_f(_dot_integers(q, mean, geom[STORED] // 32))
        else:
            lacking = splat_f(_dot(q, mean, geom[STORED]))
        for p in range(s + ROW * i, s + ROW * (i + 1), 32):
            store_f(p, add_f(load_f(p), lacking))
