"""Codes of whole blocks as halves, in tiles of f16: what the attention of many rows multiplies.

A step of many rows has a hundred blocks of the grid and more for every K/V head. So codes are decoded once, before, and
not by each of them: that takes little time beside the products, whatever the type, and the products are those of one
kernel. The memory for it is bounded (`ROOM`), whatever the context.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.kv import means_of
from polykv.fast.cuda.layout import KINDS, TILE, Kind, kind_of, slices_of
from polykv.fast.cuda.levels import IQ4_NL
from polykv.fast.cuda.source import Define
from polykv.types import Codec, Family, KVArena

# Bytes of halves at a time, K and V together: 65,536 cells of 8 heads of 128 dims.
ROOM = 1 << 28
WARPS = 4
F16 = KINDS[Family.F16, 16]


def block_bytes(arena: KVArena) -> int:
    """Bytes of a block of one head as halves."""
    return F16.tile_bytes(*slices_of(arena.head_dim)) * arena.block_size // TILE


def as_it_is(arena: KVArena) -> bool:
    """Whether its tiles are those that are multiplied."""
    return kind_of(arena.codec) is F16 and not arena.codec.centered


def room_of(k: KVArena, v: KVArena) -> int:
    """Blocks that are lifted at a time."""
    each = sum(a.n_kv * block_bytes(a) for a in (k, v) if not as_it_is(a))
    return max(1, ROOM // each) if each else 1 << 30


def file_of(kind: Kind) -> str:
    """The file of kernels/ that lifts it."""
    return "lift_path.cu" if kind.path else "lift.cu"


def defines(kind: Kind, head_dim: int, values: bool, centered: bool = False) -> dict[str, Define]:
    """What kernels/lift.cuh is specialised by."""
    width, slices = slices_of(head_dim)
    return {
        "LIFT_BITS": kind.bits,
        "LIFT_LEVELS": int(kind.levels),
        "LIFT_NORMS": int(kind.norms),
        "LIFT_SCALES": int(kind.scales),
        "LIFT_MINIMA": int(kind.minima),
        "LIFT_ZERO": kind.zero,
        "LIFT_BFLOAT": int(kind.bfloat),
        "LIFT_VALUES": int(values),
        "LIFT_MEANS": int(centered),
        "LIFT_WIDTH": width,
        "LIFT_SLICES": slices,
    }


def lift(to: Any, arena: KVArena, blocks: Any, values: bool) -> None:
    """Blocks [n] of an arena to the first n of `to`, uint8 [n_kv, N, bytes of a block]."""
    data, kind = arena.fields["data"], kind_of(arena.codec)
    tiles = arena.block_size // TILE
    made = kernel(file_of(kind), "lift", **defines(kind, arena.head_dim, values, arena.codec.centered))
    number = len(blocks) * tiles * slices_of(arena.head_dim)[1]
    strides = np.int64(to.strides[0]), np.int64(data.strides[0]), np.int64(data.strides[1])
    levels = levels_there(arena)
    grid = -(-number // WARPS), arena.n_kv
    launch(made, grid, (32 * WARPS,), (to, data, blocks, len(blocks), tiles, *strides, *means_of(arena), levels))


def levels_there(arena: KVArena) -> Any:
    """Levels of an arena's type on the current device; None if it has none."""
    if not kind_of(arena.codec).levels:
        return None
    return levels_of(arena.codec, arena.head_dim, cupy().cuda.runtime.getDevice())


@cache
def levels_of(codec: Codec, head_dim: int, _: int) -> Any:
    """Levels in units of the norm or scale of a cell, as `kv_read` has them."""
    if codec.family == Family.IQ4_NL:
        return asarray(IQ4_NL.astype(np.float32))
    return asarray(np.array(codec.centroids, np.float32) * np.sqrt(np.float32(codec.block / codec.group(head_dim))))
