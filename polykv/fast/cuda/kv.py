"""Cache storage (twin of `polykv.ref.storage`): tiles of codes as attention reads them.

The arena of a side of a layer is head after head, block after block, tile after tile: [n_kv, N, tiles, bytes]. Means of
centered keys lie apart, [n_kv, N, bytes] (kernels/kv_mean.cuh). Arenas that grow together lie in pieces of memory
straight from the driver (arena.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from polykv.errors import UnsupportedError
from polykv.fast.batches import batches
from polykv.fast.cuda.arena import Arena, aligned
from polykv.fast.cuda.arrays import check
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.forms import WARPS, Form, Use, form_of
from polykv.fast.cuda.layout import TILE, codec_limit, kind_of, mean_bytes, slices_of
from polykv.types import F32, I32, U8, Codec, KVArena

# Bytes from which no more arenas join: what a growth holds twice, and what the driver rounds up seldom.
ENOUGH = 256 << 20


@dataclass(frozen=True, eq=False)
class CudaArena(KVArena):
    """A KVArena on the device. Its fields are `data`, uint8 [N, n_kv, tiles, tile bytes], which lies as `heads` says,
    and, of centered keys, `means`, uint8 [N, n_kv, bytes], which lies likewise.

    values: cells lie in the order in which attention reads V, else in that of K. form: what kernels are told about it.
    """

    values: bool
    form: Form


def kv_alloc(
    codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int, *, values: bool = False
) -> KVArena:
    """Zeroed storage for n_blocks blocks (a `CudaArena`)."""
    reason = codec_limit(codec, head_dim, block_size)
    if reason is not None:
        raise UnsupportedError(reason)
    shapes = _shapes(codec, n_blocks, n_kv, head_dim, block_size)
    fields = {name: cupy().zeros(shape, np.uint8).swapaxes(0, 1) for name, shape in shapes.items()}
    form = form_of(codec, head_dim, Use.V if values else Use.K)
    return CudaArena(codec, n_kv, head_dim, block_size, fields, values, form)


def kv_grow(arenas: Sequence[KVArena], n_blocks: int) -> None:
    """Have n_blocks blocks in every arena, with what they hold; new ones are zero. One old piece is held beside the new
    ones. Raises CapacityError when the device has no room; some have grown then."""
    for batch in batches(map(own, arenas), lambda a: _nbytes(a, n_blocks), ENOUGH):
        piece = Arena(sum(_nbytes(a, n_blocks) for a in batch))
        for a in batch:
            kept, larger = min(n_blocks, a.n_blocks), {}
            for name, shape in _shapes(a.codec, n_blocks, a.n_kv, a.head_dim, a.block_size).items():
                field = piece.take(shape)
                field.data.memset_async(0, field.nbytes, cupy().cuda.get_current_stream())
                field[:, :kept] = a.fields[name].swapaxes(0, 1)[:, :kept]
                larger[name] = field.swapaxes(0, 1)
            # The arena object stays, only its arrays are replaced: whoever holds it sees the larger ones.
            a.fields.update(larger)


def _shapes(codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int) -> dict[str, tuple[int, ...]]:
    """Of one side of a layer: tiles, and means of centered keys."""
    width, slices = slices_of(head_dim)
    shapes: dict[str, tuple[int, ...]] = {
        "data": (n_kv, n_blocks, block_size // TILE, kind_of(codec).tile_bytes(width, slices))
    }
    if codec.centered:
        shapes["means"] = (n_kv, n_blocks, slices * mean_bytes(width))
    return shapes


def _nbytes(a: KVArena, n_blocks: int) -> int:
    """Bytes of all fields with so many blocks, each where a piece may begin."""
    return sum(aligned(prod(s)) for s in _shapes(a.codec, n_blocks, a.n_kv, a.head_dim, a.block_size).values())


def own(arena: KVArena) -> CudaArena:
    """The arena as this backend made it; TypeError for one of another backend."""
    if not isinstance(arena, CudaArena):
        raise TypeError("this arena was allocated by another backend")
    return arena


def heads(arena: CudaArena) -> Any:
    """The tiles [n_kv, N, tiles, bytes], C-contiguous."""
    return arena.fields["data"].swapaxes(0, 1)


def kv_read(arena: KVArena, blocks: I32) -> F32:
    """Decoded true-space values [n, block_size, n_kv, D] of whole blocks."""
    a = own(arena)
    n = check("blocks", blocks, np.int32, -1).shape[0]
    y: F32 = cupy().empty((n, a.block_size, a.n_kv, a.head_dim), np.float32)
    arguments = (*a.form.tables, y, blocks, n, a.block_size, a.n_kv)
    _start("kv_read", a, n * a.block_size * a.n_kv, arguments)
    return y


def kv_pack(arena: KVArena, blocks: I32) -> U8:
    """Packed layout [n, packed_rows(D, block_size), n_kv, packed_bytes(D)] of whole blocks."""
    a = own(arena)
    n, rows = check("blocks", blocks, np.int32, -1).shape[0], a.codec.packed_rows(a.head_dim, a.block_size)
    data: U8 = cupy().empty((n, rows, a.n_kv, a.form.vector_bytes), np.uint8)
    _start("kv_pack", a, n * rows * a.n_kv, (a.form.tables[0], data, blocks, n, a.block_size, rows, a.n_kv))
    return data


def kv_unpack(arena: KVArena, blocks: I32, data: U8) -> None:
    """Store packed data, shaped as `kv_pack` returns it, into whole blocks."""
    a = own(arena)
    n, rows = check("blocks", blocks, np.int32, -1).shape[0], a.codec.packed_rows(a.head_dim, a.block_size)
    check("data", data, np.uint8, n, rows, a.n_kv, a.form.vector_bytes)
    _start("kv_unpack", a, n * rows * a.n_kv, (a.form.tables[0], data, blocks, n, a.block_size, rows, a.n_kv))


def _start(entry: str, a: CudaArena, vectors: int, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel that takes a warp for each vector of an arena."""
    made = kernel("kv.cu", entry, KV_TYPE=a.form.type)
    grid = (-(-vectors // WARPS),)
    launch(made, grid, (32 * WARPS,), (*place(a), *means_of(a), *arguments), shared=a.form.shared)


def place(a: CudaArena) -> tuple[Any, ...]:
    """Where its tiles are: data, bytes from block to block and from head to head."""
    data = heads(a)
    _, n_blocks, tiles, size = data.shape
    return data, np.int64(tiles * size), np.int64(n_blocks * tiles * size)


def means_of(a: KVArena) -> tuple[Any, ...]:
    """The same for its means, with none where keys are not centered."""
    means = a.fields.get("means")
    return (None, np.int64(0), np.int64(0)) if means is None else (means, *map(np.int64, means.strides[:2]))
