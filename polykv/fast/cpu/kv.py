"""Cache storage in the resident layout: append, read back, convert to and from the packed layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.decode_group import decode_group
from polykv.fast.cpu.encode_pack import bytes_to_group, group_to_bytes
from polykv.fast.cpu.encode_tile import (
    LANES,
    MINIMA,
    SCALES,
    TILE,
    encode_lanes,
    lane_codes,
    point,
    scratch_bytes,
)
from polykv.fast.cpu.entry import entry, invoke
from polykv.fast.cpu.fwht import rotate_back
from polykv.fast.cpu.kv_cell import cell_to_group, group_to_cell
from polykv.fast.cpu.kv_layout import (
    BLOCK,
    CORE,
    DIM,
    GEOM,
    GROUP,
    I64,
    MEAN_AT,
    RECORD,
    STORED,
    CpuArena,
)
from polykv.fast.cpu.kv_memory import heads, own
from polykv.fast.cpu.kv_piece import tile_to_cells
from polykv.fast.cpu.kv_space import copied, less_means, pack_mean, stored_mean, unpack_mean
from polykv.fast.cpu.simd import addr, get_i32
from polykv.types import F32, I32, U8, KVArena, Slots

# One side of a layer as kernels take it: data [n_kv, N, RECORD], geom, table.
Side = tuple[Any, I64, F32]


@kernel()
def append_cells(
    x: int, geom_at: int, table: int, data: int, pitch: int, n_kv: int, n: int, blocks: int, offsets: int
) -> None:
    """Encode the kv heads x [n, G, D] of n tokens into cells offsets[r] of blocks[r] (int32).

    Addresses, called by address. pitch: bytes from head to head of the data (`kv_memory`). Eight tokens in a row go to
    memory as they are encoded, side by side.
    """
    geom = longs(geom_at, GEOM)
    # Where encoders do not take vectors as they are, copies; they are kept by their name.
    elsewhere = geom[MEAN_AT] > 0 or copied(geom)
    copies, dims = np.empty((n * n_kv if elsewhere else 0, geom[STORED]), np.float32), geom[DIM]
    if elsewhere:
        less_means(x, geom, table, data, pitch, n_kv, n, blocks, copies)
        x, dims = addr(copies), geom[STORED]
    g, width, row = geom[GROUP], 4 * dims, 4 * dims * n_kv
    groups = geom[STORED] // g
    # One allocation: several took a tenth of the time.
    memory = np.empty(scratch_bytes(geom) + 4 * g + 64, np.uint8)
    # Vectors that lie across two cache lines cost twice.
    work, r = (addr(memory) + 63) // 64 * 64, 0
    while r < n:
        at = x + row * r
        rows, together = _run(blocks + 4 * r, offsets + 4 * r, n - r)
        if together:
            for h in range(n_kv):
                record = data + np.int64(get_i32(blocks + 4 * r)) * geom[RECORD] + h * pitch
                for i in range(groups):
                    for lane in range(LANES):
                        point(work, lane, at + row * lane + width * h, i, geom, dims)
                    encode_lanes(work, LANES, geom, table)
                    t = np.int64(get_i32(offsets + 4 * r))
                    tile_to_cells(work + TILE, work + SCALES, work + MINIMA, geom, record, t, i)
        else:
            _scattered(at, dims, geom, table, data, pitch, n_kv, rows, blocks + 4 * r, offsets + 4 * r, work)
        r += rows
    # By name: arrays that are only known by their addresses would be freed before this.
    memory[0] = 0
    copies[: min(1, copies.shape[0])] = 0


@kernel()
def _run(blocks: int, offsets: int, n: int) -> Any:
    """How many tokens to take next, and whether they are 8 neighbours in a block; else those before the next such 8."""
    length, r = 1, 1
    while r < n and length < LANES:
        same = get_i32(blocks + 4 * r) == get_i32(blocks + 4 * r - 4)
        length = length + 1 if same and get_i32(offsets + 4 * r) == get_i32(offsets + 4 * r - 4) + 1 else 1
        r += 1
    if length < LANES:
        return r, False
    return (r, True) if r == LANES else (r - LANES, False)


@kernel()
def _scattered(
    x: int,
    dims: int,
    geom: Any,
    table: int,
    data: int,
    pitch: int,
    n_kv: int,
    n: int,
    blocks: int,
    offsets: int,
    work: int,
) -> None:
    """The same for any cells, of vectors of `dims` values: lanes are taken by groups, heads and tokens in turn."""
    g, groups = geom[GROUP], geom[STORED] // geom[GROUP]
    codes, total = work + scratch_bytes(geom), n * n_kv * groups
    for first in range(0, total, LANES):
        lanes = min(LANES, total - first)
        for lane in range(lanes):
            point(work, lane, x + 4 * dims * ((first + lane) // groups), (first + lane) % groups, geom, dims)
        encode_lanes(work, lanes, geom, table)
        for lane in range(lanes):
            vector, i = (first + lane) // groups, (first + lane) % groups
            r, h = vector // n_kv, vector % n_kv
            scale, minimum = lane_codes(work, lane, g, codes)
            record = data + np.int64(get_i32(blocks + 4 * r)) * geom[RECORD] + h * pitch
            group_to_cell(codes, scale, minimum, geom, record, np.int64(get_i32(offsets + 4 * r)), i)


@kernel()
def _append(append: int, x: Any, geom: Any, table: Any, data: Any, blocks: Any, offsets: Any) -> None:
    cells = addr(data), data.strides[0], x.shape[1], x.shape[0], addr(blocks), addr(offsets)
    invoke(append, (addr(x), addr(geom), addr(table), *cells))


@kernel()
def _read(geom: Any, table: Any, data: Any, blocks: Any, codes: Any, y: Any, out: Any) -> None:
    g, mean = geom[GROUP], np.empty(geom[STORED], np.float32)
    for i in range(blocks.shape[0]):
        for t in range(out.shape[1]):
            for h in range(out.shape[2]):
                for k in range(geom[STORED] // g):
                    scale, minimum = cell_to_group(geom, addr(data[h, blocks[i]]), t, k, addr(codes))
                    decode_group(addr(codes), scale, minimum, geom, addr(table), addr(y) + 4 * g * k)
                if geom[MEAN_AT] > 0:
                    stored_mean(data[h, blocks[i]], geom, mean)
                    for j in range(geom[STORED]):
                        y[j] += mean[j]
                if geom[CORE] > 0:
                    rotate_back(y, geom, table)
                out[i, t, h] = y[: geom[DIM]]


@kernel()
def _pack(geom: Any, data: Any, blocks: Any, codes: Any, out: Any) -> None:
    for i in range(blocks.shape[0]):
        for h in range(out.shape[2]):
            for t in range(geom[BLOCK]):
                for k in range(geom[STORED] // geom[GROUP]):
                    scale, minimum = cell_to_group(geom, addr(data[h, blocks[i]]), t, k, addr(codes))
                    group_to_bytes(addr(codes), scale, minimum, geom, addr(out[i, t, h]), k)
            if geom[MEAN_AT] > 0:
                pack_mean(data[h, blocks[i]], geom, out[i, geom[BLOCK] :, h])


@kernel()
def _unpack(geom: Any, packed: Any, data: Any, blocks: Any, codes: Any) -> None:
    for i in range(blocks.shape[0]):
        for h in range(packed.shape[2]):
            for t in range(geom[BLOCK]):
                for k in range(geom[STORED] // geom[GROUP]):
                    scale, minimum = bytes_to_group(addr(packed[i, t, h]), k, geom, addr(codes))
                    group_to_cell(addr(codes), scale, minimum, geom, addr(data[h, blocks[i]]), t, k)
            if geom[MEAN_AT] > 0:
                unpack_mean(packed[i, geom[BLOCK] :, h], geom, data[h, blocks[i]])


def side(arena: KVArena) -> Side:
    """One side of a layer as kernels take it: data, geom, table."""
    a = own(arena)
    return heads(a), a.geom, a.table


def kv_append(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D] into the cells `slots`."""
    a = own(arena)
    _append(
        entry(append_cells, 9),
        np.ascontiguousarray(x, np.float32),
        a.geom,
        a.table,
        heads(a),
        np.ascontiguousarray(slots.blocks, np.int32),
        np.ascontiguousarray(slots.offsets, np.int32),
    )


def _group(a: CpuArena) -> I32:
    """Room for the codes of a group."""
    return np.zeros(int(a.geom[GROUP]), np.int32)


def kv_read(arena: KVArena, blocks: I32) -> F32:
    """True-space values [n, block_size, n_kv, D] of whole blocks."""
    a = own(arena)
    out = np.empty((len(blocks), a.block_size, a.n_kv, a.head_dim), np.float32)
    y = np.empty(int(a.geom[STORED]), np.float32)
    _read(a.geom, a.table, heads(a), np.ascontiguousarray(blocks), _group(a), y, out)
    return out


def kv_pack(arena: KVArena, blocks: I32) -> U8:
    """Packed layout [n, packed_rows(D, block_size), n_kv, packed_bytes(D)] of whole blocks."""
    a = own(arena)
    rows = a.codec.packed_rows(a.head_dim, a.block_size)
    out = np.empty((len(blocks), rows, a.n_kv, a.codec.packed_bytes(a.head_dim)), np.uint8)
    _pack(a.geom, heads(a), np.ascontiguousarray(blocks), _group(a), out)
    return out


def kv_unpack(arena: KVArena, blocks: I32, data: U8) -> None:
    """Store packed data, shaped as `kv_pack` returns it, into whole blocks."""
    a = own(arena)
    _unpack(a.geom, np.ascontiguousarray(data), heads(a), np.ascontiguousarray(blocks), _group(a))
