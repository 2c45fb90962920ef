"""Cache storage in the resident layout: allocate, append, read back, convert to and from the packed layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats, longs, octets
from polykv.fast.cpu.encode_pack import load_bytes, store_bytes
from polykv.fast.cpu.encode_row import decode_row, encode_row
from polykv.fast.cpu.entry import entry, invoke
from polykv.fast.cpu.kv_cell import cell_load, cell_store
from polykv.fast.cpu.kv_layout import DIM, GEOM, I64, RECORD, STORED, TABLE, CpuArena, layout
from polykv.fast.cpu.simd import addr
from polykv.types import F32, I32, U8, Codec, KVArena, Slots

# One side of a layer as kernels take it: data, geom, table.
Side = tuple[Any, I64, F32]


@kernel()
def append_cell(x: int, geom_at: int, table_at: int, record: int, n_kv: int, offset: int) -> None:
    """Encode the kv heads x [G, D] of one token into cell `offset` of a block; addresses, called by address."""
    geom, table = longs(geom_at, GEOM), floats(table_at, TABLE)
    values, stored = floats(x, (n_kv, geom[DIM])), geom[STORED]
    # One allocation: three took a tenth of the time.
    memory = np.empty(3 * stored, np.uint32)
    y, codes, scales = (
        memory[:stored].view(np.float32),
        memory[stored : 2 * stored],
        memory[2 * stored :].view(np.uint16),
    )
    for g in range(n_kv):
        encode_row(values[g], geom, table, y, codes, scales)
        cell_store(codes, scales, geom, octets(record + g * geom[RECORD], geom[RECORD]), offset)


@kernel()
def append_row(append: int, x: Any, geom: Any, table: Any, data: Any, block: int, offset: int) -> None:
    """Encode the kv heads x [G, D] of one token into cell `offset` of `block`; append: entry of `append_cell`."""
    invoke(append, (addr(x), addr(geom), addr(table), addr(data[block]), x.shape[0], np.int64(offset)))


@kernel()
def _append(append: int, x: Any, geom: Any, table: Any, data: Any, blocks: Any, offsets: Any) -> None:
    for r in range(x.shape[0]):
        append_row(append, x[r], geom, table, data, blocks[r], offsets[r])


@kernel()
def _read(geom: Any, table: Any, data: Any, blocks: Any, out: Any) -> None:
    y = np.empty(geom[STORED], np.float32)
    codes = np.empty(geom[STORED], np.uint32)
    scales = np.empty(geom[STORED], np.uint16)
    for i in range(blocks.shape[0]):
        for t in range(out.shape[1]):
            for g in range(out.shape[2]):
                cell_load(geom, data[blocks[i], g], t, codes, scales)
                decode_row(codes, scales, geom, table, y)
                out[i, t, g] = y[: geom[DIM]]


@kernel()
def _pack(geom: Any, data: Any, blocks: Any, out: Any) -> None:
    codes = np.empty(geom[STORED], np.uint32)
    scales = np.empty(geom[STORED], np.uint16)
    for i in range(blocks.shape[0]):
        for t in range(out.shape[1]):
            for g in range(out.shape[2]):
                cell_load(geom, data[blocks[i], g], t, codes, scales)
                store_bytes(codes, scales, geom, out[i, t, g])


@kernel()
def _unpack(geom: Any, packed: Any, data: Any, blocks: Any) -> None:
    codes = np.zeros(geom[STORED], np.uint32)
    scales = np.empty(geom[STORED], np.uint16)
    for i in range(blocks.shape[0]):
        for t in range(packed.shape[1]):
            for g in range(packed.shape[2]):
                load_bytes(packed[i, t, g], geom, codes, scales)
                cell_store(codes, scales, geom, data[blocks[i], g], t)


def own(arena: KVArena) -> CpuArena:
    """The arena as this backend made it; TypeError for one of another backend."""
    if not isinstance(arena, CpuArena):
        raise TypeError("this arena was allocated by another backend")
    return arena


def side(arena: KVArena) -> Side:
    """One side of a layer as kernels take it: data, geom, table."""
    a = own(arena)
    return a.fields["data"], a.geom, a.table


def kv_alloc(codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int) -> KVArena:
    """Zeroed storage for n_blocks blocks (a `CpuArena`)."""
    geom, table = layout(codec, head_dim, block_size)
    data = np.zeros((n_blocks, n_kv, int(geom[RECORD])), np.uint8)
    return CpuArena(codec, n_kv, head_dim, block_size, {"data": data}, geom, table)


def kv_append(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D] into the cells `slots`."""
    a = own(arena)
    _append(
        entry(append_cell, 6), np.ascontiguousarray(x), a.geom, a.table, a.fields["data"], slots.blocks, slots.offsets
    )


def kv_read(arena: KVArena, blocks: I32) -> F32:
    """True-space values [n, block_size, n_kv, D] of whole blocks."""
    a = own(arena)
    out = np.empty((len(blocks), a.block_size, a.n_kv, a.head_dim), np.float32)
    _read(a.geom, a.table, a.fields["data"], np.ascontiguousarray(blocks), out)
    return out


def kv_pack(arena: KVArena, blocks: I32) -> U8:
    """Packed layout [n, block_size, n_kv, packed_bytes(D)] of whole blocks."""
    a = own(arena)
    out = np.empty((len(blocks), a.block_size, a.n_kv, a.codec.packed_bytes(a.head_dim)), np.uint8)
    _pack(a.geom, a.fields["data"], np.ascontiguousarray(blocks), out)
    return out


def kv_unpack(arena: KVArena, blocks: I32, data: U8) -> None:
    """Store packed data [n, block_size, n_kv, packed_bytes(D)] into whole blocks."""
    a = own(arena)
    _unpack(a.geom, np.ascontiguousarray(data), a.fields["data"], np.ascontiguousarray(blocks))
