"""8 groups of values -> codes and scales, whatever the family. Every layout is written from these codes.

A tile holds 8 groups side by side (`encode_simd`): of 8 tokens, of the heads of one token, or of one head; a group's
codes do not depend on its company. Codes int32 [g, 8]: float32, float16 or bfloat16 bits, int8 as two's complement, a
number of 4 to 6 bits, the index of a level, or a state of a trellis.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_rotated import lloyd_tile
from polykv.fast.cpu.encode_scalar import iq4_tile, least, plain_tile, q8_tile, ranged_tile, signed_tile
from polykv.fast.cpu.encode_simd import columns8
from polykv.fast.cpu.encode_trellis import trellis_tile
from polykv.fast.cpu.kv_layout import (
    BF16_,
    BITS,
    F16_,
    F32_,
    FAMILY,
    GROUP,
    LLOYD_,
    Q4_0_,
    Q4_1_,
    Q5_0_,
    Q5_1_,
    Q6_0_,
    Q8_0_,
    TRELLIS_,
    WIDEST,
)
from polykv.fast.cpu.simd import get_i32, get_i64, load_f, put_i32, put_i64, splat_f, store_f, store_i
from polykv.fast.cpu.simd_math import to_half
from polykv.fast.cpu.trellis import work_bytes

ZERO = np.float32(0.0)
LANES = 8
# What the memory of an encoder begins with: the addresses of 8 groups (int64), then the float16 bits of their scales
# and of their minima (int32). Behind it a tile, spare memory, a group for each lane, and memory to search a trellis.
ROWS, SCALES, MINIMA, TILE = 0, 64, 96, 128


@kernel()
def scratch_bytes(geom: Any) -> Any:
    """Size of the memory that `encode_lanes` works in."""
    g = geom[GROUP]
    searched = work_bytes(g) if geom[FAMILY] == TRELLIS_ else 0
    return TILE + 32 * g + 32 * max(g, WIDEST) + 4 * LANES * g + searched


@kernel()
def point(work: int, lane: int, vector: int, i: int, geom: Any, dims: int) -> None:
    """Let a lane have group i of the vector of `dims` values (eights) at an address; what is beyond its end counts as
    zero."""
    g = geom[GROUP]
    at, have = vector + 4 * g * i, dims - g * i
    if have < g:
        copy = work + TILE + 32 * g + 32 * max(g, WIDEST) + 4 * g * lane
        for k in range(0, 4 * g, 32):
            store_f(copy + k, load_f(at + k) if k < 4 * have else splat_f(ZERO))
        at = copy
    put_i64(work + ROWS + 8 * lane, at)


@kernel()
def encode_lanes(work: int, lanes: int, geom: Any, table: int) -> None:
    """Codes, scales and minima of the groups that `point` named, of the first so many lanes."""
    tile, g, family = work + TILE, geom[GROUP], geom[FAMILY]
    for lane in range(lanes, LANES):
        put_i64(work + ROWS + 8 * lane, get_i64(work + ROWS))
    for k in range(0, g, 8):
        columns8(work + ROWS, 4 * k, tile + 32 * k)
    if family in (F32_, F16_, BF16_):
        plain_tile(tile, g, family)
        return
    half = np.float32(1 << (geom[BITS] - 1))
    if family == Q8_0_:
        d = q8_tile(tile)
    elif family == LLOYD_:
        d = lloyd_tile(tile, geom, table, tile + 32 * g)
    elif family == TRELLIS_:
        paths = tile + 32 * g + 32 * max(g, WIDEST)
        d = trellis_tile(tile, lanes, geom, table, tile + 32 * g, paths, paths + 4 * LANES * g)
    elif family in (Q4_0_, Q5_0_, Q6_0_):
        d = signed_tile(tile, half)
    elif family in (Q4_1_, Q5_1_):
        low = least(tile)
        d = ranged_tile(tile, low, half + half - np.float32(1))
        store_i(work + MINIMA, to_half(low))
    else:
        d = iq4_tile(tile, table)
    store_i(work + SCALES, to_half(d))


@kernel()
def lane_codes(work: int, lane: int, g: int, codes: int) -> Any:
    """Codes of one lane to int32 [g]; returns its scale and its minimum."""
    at = work + TILE + 4 * lane
    for k in range(0, 4 * g, 4):
        put_i32(codes + k, get_i32(at + 8 * k))
    return get_i32(work + SCALES + 4 * lane), get_i32(work + MINIMA + 4 * lane)
