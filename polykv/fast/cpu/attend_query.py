"""Queries in the form that the keys want: scaled, and rotated or rounded to int16.

Keys of most scalar types are integers with a scale to 32 dims. Queries are rounded likewise, to 16 bits,

    d = max|q| / 32767,  q' = round(q / d)    per 32 dims,

so that their products are exact in int32 (32 * 32767 * 128 < 2^31) and need half the instructions of floats. What
rounding changes in a score is some 1e-5 of |q| |k|, far less than the keys' own rounding to 8 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_tile import QUERY_BYTES
from polykv.fast.cpu.fwht import rotate
from polykv.fast.cpu.kv_layout import CORE, DIM, FAMILY, IQ4_NL_, Q4_0_, Q5_0_, Q6_0_, Q8_0_, STORED
from polykv.fast.cpu.lift import PAIRS
from polykv.fast.cpu.simd import addr, load_f, put_f32, splat_f, store_u16x8, sum_f, top_f
from polykv.fast.cpu.simd_math import abs_f, fma, max_f, mul_f, round_i

LARGEST = np.float32(32767)
# Scales below this have no float32 inverse; such groups become zeros.
TINY = np.finfo(np.float32).tiny
ONE, ZERO = np.float32(1), np.float32(0)


@kernel()
def in_pairs(geom: Any) -> Any:
    """Whether scores with keys of this layout are integer products."""
    return geom[FAMILY] in (Q8_0_, Q6_0_, Q5_0_, Q4_0_, IQ4_NL_)


@kernel()
def round_query(row: int, groups: int) -> None:
    """float32 [32 groups] at `row` to int16 in place: per group 32 of them (16 pairs), then the float32 scale."""
    to = row
    for _ in range(groups):
        v0, v1, v2, v3 = load_f(row), load_f(row + 32), load_f(row + 64), load_f(row + 96)
        d = top_f(max_f(max_f(abs_f(v0), abs_f(v1)), max_f(abs_f(v2), abs_f(v3)))) / LARGEST
        inverse = splat_f(ONE / d if d >= TINY else ZERO)
        # Zero, but NaN for queries that are not finite: their scores must not look like numbers.
        nothing = splat_f(ZERO)
        flaw = sum_f(fma(v0, nothing, fma(v1, nothing, fma(v2, nothing, mul_f(v3, nothing)))))
        store_u16x8(to, round_i(mul_f(v0, inverse)))
        store_u16x8(to + 16, round_i(mul_f(v1, inverse)))
        store_u16x8(to + 32, round_i(mul_f(v2, inverse)))
        store_u16x8(to + 48, round_i(mul_f(v3, inverse)))
        put_f32(to + 4 * PAIRS, d + flaw)
        row, to = row + 128, to + QUERY_BYTES


@kernel()
def prepare_queries(q: Any, r0: int, r1: int, g: int, group: int, scale: Any, geom: Any, table: Any, out: Any) -> None:
    """out [(r1-r0)*group + 1, D'] = queries of kv head g, ready for keys of layout `geom`; last row zero."""
    dim = geom[DIM]
    out[out.shape[0] - 1] = 0
    for r in range(r0, r1):
        for j in range(group):
            row = out[(r - r0) * group + j]
            for d in range(dim):
                row[d] = q[r, g * group + j, d] * scale
            row[dim:] = 0
            if geom[CORE] > 0:
                rotate(row, geom, table)
            elif in_pairs(geom):
                round_query(addr(row), geom[STORED] // 32)
