"""Vectors as encoders take them, where that is not as they are: scalar types in rotated space, centered keys, less the
mean of their record (docs/CENTERED.md), and vectors that end within 8 values. The mean is q8_0, behind the scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats, octets
from polykv.fast.cpu.fwht import rotate, rotate_back
from polykv.fast.cpu.kv_layout import DIM, FAMILY, LLOYD_, MEAN_AT, MEAN_BLOCK, RECORD, STORED, TABLE, TRELLIS_, TURN
from polykv.fast.cpu.simd import addr, get_i32, get_u8, get_u16, load_f, put_i8, put_i16, store_f
from polykv.fast.cpu.simd_math import clamp_f, half_f, half_i

F16_MAX, F127 = np.float32(65504.0), np.float32(127.0)
# The float below a half: with a half itself, 0.49999997 would round up to 1. Scales below TINY have no float32 inverse.
HALF, TINY = np.float32(0.5 - 2.0**-25), np.finfo(np.float32).tiny
ZERO, ONE = np.float32(0), np.float32(1)
# Beyond what a scale can hold, but still far from the largest sum of float32.
LARGEST = np.float32(1e17)


@kernel()
def turned(geom: Any) -> Any:
    """Whether vectors are rotated before they come to an encoder: encoders of unit vectors do it themselves."""
    return geom[TURN] > 0 and geom[FAMILY] != LLOYD_ and geom[FAMILY] != TRELLIS_


@kernel()
def copied(geom: Any) -> Any:
    """Whether encoders take copies of vectors: of those that are rotated before, and of those that do not consist of
    whole 8 values, which encoders read at a time."""
    return turned(geom) or geom[DIM] % 8 > 0


@kernel()
def to_codes(x: Any, geom: Any, table: Any, y: Any) -> None:
    """y [D'] = what an encoder of this layout takes for the vector x [D]."""
    y[: x.shape[0]] = x
    y[x.shape[0] :] = 0
    if turned(geom):
        for p in range(addr(y), addr(y) + 4 * geom[STORED], 32):
            store_f(p, clamp_f(load_f(p), LARGEST))
        rotate(y, geom, table)


@kernel()
def less_means(
    x: int, geom: Any, table_at: int, data: int, pitch: int, n_kv: int, n: int, blocks: int, out: Any
) -> None:
    """out [n G, D'] = what encoders take for the kv heads x [n, G, D] of n tokens; blocks: address of int32 [n]; pitch:
    bytes from head to head of the data."""
    table, dim, mean = floats(table_at, TABLE), geom[DIM], np.zeros(geom[STORED], np.float32)
    row = np.empty(dim, np.float32)
    for h in range(n_kv):
        known = np.int64(-1)
        for r in range(n):
            block = np.int64(get_i32(blocks + 4 * r))
            if geom[MEAN_AT] > 0 and block != known:
                get_mean(octets(data + block * geom[RECORD] + h * pitch, geom[RECORD]), geom, table, mean)
                known = block
            given = floats(x + 4 * dim * (r * n_kv + h), dim)
            for j in range(dim):
                row[j] = given[j] - mean[j]
            to_codes(row, geom, table, out[r * n_kv + h])


@kernel()
def put_mean(rec: Any, geom: Any, table: Any, y: Any) -> None:
    """Store the mean y [D'] of a record uint8 [RECORD], given in true space; y is changed."""
    if geom[TURN] > 0:
        rotate(y, geom, table)
    at = addr(rec) + geom[MEAN_AT]
    for first in range(0, geom[STORED], 32):
        part, top = y[first : first + 32], ZERO
        for j in range(len(part)):
            top = max(top, abs(part[j]))
        d = min(top / F127, F16_MAX)
        inverse = ONE / d if d >= TINY else ZERO
        put_i16(at, half_i(d))
        for j in range(32):
            # Half away from zero, as encoders do.
            v = min(max(part[j] * inverse, -F127), F127) if j < len(part) else ZERO
            put_i8(at + 2 + j, np.int32(v + (HALF if v >= ZERO else -HALF)))
        at += MEAN_BLOCK


@kernel()
def stored_mean(rec: Any, geom: Any, y: Any) -> None:
    """The mean of a record in the space of its codes, y [D']."""
    for j in range(geom[STORED]):
        at = addr(rec) + geom[MEAN_AT] + MEAN_BLOCK * (j // 32)
        y[j] = np.float32(np.int8(get_u8(at + 2 + j % 32))) * half_f(get_u16(at))


@kernel()
def get_mean(rec: Any, geom: Any, table: Any, y: Any) -> None:
    """The mean in true space, y [D'] of which the first D are those of the vectors."""
    stored_mean(rec, geom, y)
    if geom[TURN] > 0:
        rotate_back(y, geom, table)


@kernel()
def pack_mean(rec: Any, geom: Any, out: Any) -> None:
    """Copy the mean to rows [n, bytes] of the packed layout, filled up with zeros."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            at = i * out.shape[1] + j
            out[i, j] = rec[geom[MEAN_AT] + at] if at < _size(geom) else 0


@kernel()
def unpack_mean(rows: Any, geom: Any, rec: Any) -> None:
    """Inverse of `pack_mean`."""
    for at in range(_size(geom)):
        rec[geom[MEAN_AT] + at] = rows[at // rows.shape[1], at % rows.shape[1]]


@kernel()
def _size(geom: Any) -> Any:
    """Bytes of a mean without what fills it up."""
    return -(-geom[STORED] // 32) * MEAN_BLOCK
