"""Vectors <-> exchange layout (twin of `polykv.ref.codec`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.decode_group import decode_group
from polykv.fast.cpu.encode_pack import bytes_to_group, group_to_bytes
from polykv.fast.cpu.encode_tile import LANES, encode_lanes, lane_codes, point, scratch_bytes
from polykv.fast.cpu.fwht import rotate_back
from polykv.fast.cpu.kv_layout import CORE, DIM, GROUP, STORED, exchange_layout
from polykv.fast.cpu.kv_space import copied, to_codes
from polykv.fast.cpu.simd import addr
from polykv.results import result
from polykv.types import F32, U8, Codec


@kernel()
def _encode(x: Any, geom: Any, table: Any, work: Any, codes: Any, out: Any) -> None:
    groups, memory, to = geom[STORED] // geom[GROUP], addr(work), addr(codes)
    n, dims = x.shape[0] * groups, x.shape[1]
    for first in range(0, n, LANES):
        lanes = min(LANES, n - first)
        for lane in range(lanes):
            r, i = (first + lane) // groups, (first + lane) % groups
            point(memory, lane, addr(x) + 4 * dims * r, i, geom, dims)
        encode_lanes(memory, lanes, geom, addr(table))
        for lane in range(lanes):
            scale, minimum = lane_codes(memory, lane, geom[GROUP], to)
            r, i = (first + lane) // groups, (first + lane) % groups
            group_to_bytes(to, scale, minimum, geom, addr(out) + out.shape[1] * r, i)


@kernel()
def _decode(blocks: Any, geom: Any, table: Any, codes: Any, y: Any, out: Any) -> None:
    g = geom[GROUP]
    for r in range(blocks.shape[0]):
        for i in range(geom[STORED] // g):
            scale, minimum = bytes_to_group(addr(blocks) + blocks.shape[1] * r, i, geom, addr(codes))
            decode_group(addr(codes), scale, minimum, geom, addr(table), addr(y) + 4 * g * i)
        if geom[CORE] > 0:
            rotate_back(y, geom, table)
        out[r] = y[: geom[DIM]]


@kernel()
def _turn(x: Any, geom: Any, table: Any, out: Any) -> None:
    for r in range(x.shape[0]):
        to_codes(x[r], geom, table, out[r])


def encode(codec: Codec, x: F32, *, out: U8 | None = None) -> U8:
    """Exchange layout uint8 [..., exchange_bytes(D)] of vectors x [..., D]; scales never become infinite."""
    d = x.shape[-1]
    n = codec.exchange_bytes(d)
    out = result(out, (*x.shape[:-1], n), np.uint8)
    direct = out if out.flags.c_contiguous else np.empty(out.shape, np.uint8)
    geom, table = exchange_layout(codec, d)
    work, codes = np.empty(int(scratch_bytes(geom)), np.uint8), np.empty(int(geom[GROUP]), np.int32)
    flat = np.ascontiguousarray(x, np.float32).reshape(-1, d)
    if copied(geom):
        before, flat = flat, np.empty((len(flat), int(geom[STORED])), np.float32)
        _turn(before, geom, table, flat)
    _encode(flat, geom, table, work, codes, direct.reshape(-1, n))
    if direct is not out:
        out[...] = direct
    return out


def decode(codec: Codec, blocks: U8, head_dim: int, *, out: F32 | None = None) -> F32:
    """True-space vectors [..., head_dim] of exchange blocks [..., exchange_bytes(head_dim)]."""
    out = result(out, (*blocks.shape[:-1], head_dim))
    geom, table = exchange_layout(codec, head_dim)
    codes, y = np.zeros(int(geom[GROUP]), np.int32), np.empty(int(geom[STORED]), np.float32)
    flat = np.ascontiguousarray(blocks).reshape(-1, blocks.shape[-1])
    _decode(flat, geom, table, codes, y, out.reshape(-1, head_dim))
    return out
