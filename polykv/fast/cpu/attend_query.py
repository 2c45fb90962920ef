"""Queries in the form that the keys want: scaled, rotated, rounded to int16.

Keys of most scalar types are integers with a scale to 32 dims. Queries are rounded likewise, to 16 bits,

    d = max|q| / 32639,  q' = round(q / d)    per 32 dims,

so that their products are exact in int32 (32 * 32639 * 128 < 2^31) and need half the instructions of floats. 32639 is
256 * 127 + 127, the largest number that is two signed bytes. What rounding changes in a score is some 1e-5 of |q| |k|,
far less than the keys' own rounding to 8 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_tile_k import BIAS_AT, IN_BYTES, QUADS, QUERY_GROUP, SCALE_AT, SUM_AT
from polykv.fast.cpu.fwht import rotate
from polykv.fast.cpu.kv_layout import (
    CORE,
    DIM,
    FAMILY,
    GROUP,
    SCALAR,
    STORED,
    WORTH,
)
from polykv.fast.cpu.lift_planes import in_planes, planes_of
from polykv.fast.cpu.simd import (
    addr,
    get_i32,
    load_f,
    load_i8x8,
    load_u16x8,
    put_f32,
    put_i32,
    splat_f,
    splat_i,
    store_i8x8,
    store_u16x8,
    sum_f,
    sum_i,
    top_f,
)
from polykv.fast.cpu.simd_core import F32X8, I32X8, Floats, Ints, const, op
from polykv.fast.cpu.simd_math import (
    abs_f,
    add_f,
    add_i,
    and_i,
    fma,
    max_f,
    mul_f,
    multiply_add,
    signed_byte,
    sub_i,
    to_f,
)
from polykv.fast.cpu.simd_wide import lanes

LARGEST = np.float32(32639)
# Scales below this have no float32 inverse; such groups become zeros.
TINY = np.finfo(np.float32).tiny
ONE, ZERO, BYTE = np.float32(1), np.float32(0), np.float32(256)


@kernel()
def in_integers(geom: Any) -> Any:
    """Whether scores with keys of this layout are integer products."""
    return in_planes(geom) or geom[FAMILY] in SCALAR


@kernel()
def query_floats(geom: Any) -> Any:
    """Size of a query for keys of this layout, in float32."""
    return max(geom[STORED], planes_of(geom) * QUERY_GROUP // 4) if in_planes(geom) else geom[STORED]


@op(Ints, Floats, Floats)
def nearest(b: Any, x: Any, y: Any) -> Any:
    """The integer nearest to x * y, which is below 2^22; any integer when it is none."""
    # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
    magic = const(F32X8, 12582912.0)
    return b.sub(b.bitcast(multiply_add(b, x, y, magic), I32X8), b.bitcast(magic, I32X8))


@op(Ints, Ints)
def _in_turns(b: Any, x: Any) -> Any:
    """Dims 0, 2, 1, 3 of every four."""
    return lanes(b, x, x, [0, 2, 1, 3, 4, 6, 5, 7])


@kernel()
def _put_quads(at: int, i: int, q: Any) -> None:
    """Dims 8 i .. 8 i + 7 of a group at `at`, integers, in the order of `attend_tile_k`."""
    if IN_BYTES:
        low = signed_byte(q, np.int32(0))
        store_i8x8(at + 8 * i, signed_byte(sub_i(q, low), np.int32(1)))
        store_i8x8(at + 4 * QUADS + 8 * i, low)
    else:
        store_u16x8(at + 16 * i, _in_turns(q))


@kernel()
def get_quads(at: int, i: int) -> Any:
    """Dims 8 i .. 8 i + 7 of a rounded group at `at`, as floats: inverse of `_put_quads`."""
    if IN_BYTES:
        high, low = to_f(load_i8x8(at + 8 * i)), to_f(load_i8x8(at + 4 * QUADS + 8 * i))
        return fma(high, splat_f(BYTE), low)
    middle, mask = splat_i(np.int32(32768)), splat_i(np.int32(65535))
    return to_f(_in_turns(sub_i(and_i(add_i(load_u16x8(at + 16 * i), middle), mask), middle)))


@kernel(inlined=True)
def _round_group(row: int, dims: int, to: int) -> Any:
    """float32 [32], of which those from `dims` (8, 16, 24 or 32) on count as zero, to int16; returns their scale."""
    # Zero, but NaN for queries that are not finite: their scores must not look like numbers.
    nothing = splat_f(ZERO)
    v0, v1, v2, v3 = load_f(row), nothing, nothing, nothing
    if dims > 8:
        v1 = load_f(row + 32)
    if dims > 16:
        v2 = load_f(row + 64)
    if dims > 24:
        v3 = load_f(row + 96)
    d = top_f(max_f(max_f(abs_f(v0), abs_f(v1)), max_f(abs_f(v2), abs_f(v3)))) / LARGEST
    inverse = splat_f(ONE / d if d >= TINY else ZERO)
    flaw = sum_f(fma(v0, nothing, fma(v1, nothing, fma(v2, nothing, mul_f(v3, nothing)))))
    q0, q1, q2, q3 = nearest(v0, inverse), nearest(v1, inverse), nearest(v2, inverse), nearest(v3, inverse)
    _put_quads(to, 0, q0)
    _put_quads(to, 1, q1)
    _put_quads(to, 2, q2)
    _put_quads(to, 3, q3)
    put_i32(to + BIAS_AT, np.int32(-128 * sum_i(add_i(add_i(q0, q1), add_i(q2, q3)))))
    put_f32(to + SCALE_AT, d + flaw)
    put_f32(to + SUM_AT, sum_f(add_f(add_f(v0, v1), add_f(v2, v3))))
    return d + flaw


@kernel()
def round_query(row: int, groups: int) -> None:
    """float32 [32 groups] at `row` to int16 in place: per group 32 of them, the start of sums, the scale, the sum."""
    for i in range(groups):
        _round_group(row + 128 * i, 32, row + QUERY_GROUP * i)


@kernel()
def round_for_planes(row: int, geom: Any, worth: Any) -> None:
    """The same for keys in planes: every 32 dims twice, for high bytes and for low ones, with scales times `worth`."""
    group = geom[GROUP]
    count = -(-group // 32)
    # From the last, because what is written is longer than what was read.
    for i in range(geom[STORED] // group - 1, -1, -1):
        for j in range(count - 1, -1, -1):
            to = row + 2 * QUERY_GROUP * (i * count + j)
            d = _round_group(row + 4 * (i * group + 32 * j), min(32, group - 32 * j), to) * worth
            for k in range(0, QUERY_GROUP, 4):
                put_i32(to + QUERY_GROUP + k, get_i32(to + k))
            put_f32(to + SCALE_AT, BYTE * d)
            put_f32(to + QUERY_GROUP + SCALE_AT, d)


@kernel()
def prepare_queries(q: Any, r0: int, r1: int, g: int, group: int, scale: Any, geom: Any, table: Any, out: Any) -> None:
    """out [(r1-r0)*group + 1, query_floats] = queries of kv head g, ready for keys of layout `geom`; last row zero."""
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
            if in_planes(geom):
                round_for_planes(addr(row), geom, table[WORTH])
            elif in_integers(geom):
                round_query(addr(row), geom[STORED] // 32)
