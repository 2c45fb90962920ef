"""Cache storage (twin of `polykv.ref.storage`): tiles of codes as attention reads them.

The arena of a side of a layer is head after head, block after block, tile after tile: [n_kv, N, tiles, bytes].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.errors import UnsupportedError
from polykv.fast.cuda.arrays import check
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.forms import WARPS, Form, Use, form_of
from polykv.fast.cuda.layout import TILE, codec_limit, kind_of, slices_of
from polykv.types import F32, I32, U8, Angles, Codec, KVArena, Slots


@dataclass(frozen=True, eq=False)
class CudaArena(KVArena):
    """A KVArena on the device. Its one field is `data`, uint8 [N, n_kv, tiles, tile bytes], which lies as `heads` does.

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
    tile = kind_of(codec).tile_bytes(*slices_of(head_dim))
    data = cupy().zeros((n_kv, n_blocks, block_size // TILE, tile), np.uint8).swapaxes(0, 1)
    form = form_of(codec, head_dim, Use.V if values else Use.K)
    return CudaArena(codec, n_kv, head_dim, block_size, {"data": data}, values, form)


def kv_grow(arenas: Sequence[KVArena], n_blocks: int) -> None:
    """Have n_blocks blocks in every arena, with what they hold; new ones are zero."""
    for arena in map(own, arenas):
        larger = kv_alloc(
            arena.codec, n_blocks, arena.n_kv, arena.head_dim, arena.block_size, values=arena.values
        ).fields["data"]
        kept = min(n_blocks, arena.n_blocks)
        larger[:kept] = arena.fields["data"][:kept]
        # The arena object stays, only its array is replaced: whoever holds it sees the larger one.
        arena.fields["data"] = larger


def own(arena: KVArena) -> CudaArena:
    """The arena as this backend made it; TypeError for one of another backend."""
    if not isinstance(arena, CudaArena):
        raise TypeError("this arena was allocated by another backend")
    return arena


def heads(arena: CudaArena) -> Any:
    """The tiles [n_kv, N, tiles, bytes], C-contiguous."""
    return arena.fields["data"].swapaxes(0, 1)


def kv_append(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D] into the cells `slots`, of which none is named twice.

    Rows whose block is negative are left out: a graph that was captured for more rows than there are has such ones.
    """
    check("x", x, np.float32)
    write(arena, x, slots)


def write(
    arena: KVArena,
    x: F32,
    slots: Slots,
    *,
    bias: F32 | None = None,
    norm: F32 | None = None,
    eps: float = 0.0,
    angles: Angles | None = None,
    factors: F32 | None = None,
) -> None:
    """`kv_append` of factors * rope(rms_norm(x + bias) * norm), in one kernel; steps without arguments are left out.

    x [R, n_kv, D]: rows may lie apart (columns of a product for Q, K and V). bias, factors [n_kv, D]; norm [D].
    """
    a = own(arena)
    shape, (n, pitch) = (a.n_kv, a.head_dim), _rows(x, a)
    blocks = check("the blocks of slots", slots.blocks, np.int32, n)
    offsets = check("the offsets of slots", slots.offsets, np.int32, n)
    for name, factor in (("bias", bias), ("factors", factors)):
        if factor is not None:
            check(name, factor, np.float32, *shape)
    if norm is not None:
        check("norm", norm, np.float32, a.head_dim)
    cosines, sines, half, interleaved = None, None, 0, 0
    if angles is not None:
        half, interleaved = angles.cos.shape[1], int(angles.interleaved)
        cosines, sines = (check("angles", each, np.float32, n, half) for each in (angles.cos, angles.sin))
    steps = pitch, bias, norm, np.float64(eps), cosines, sines, half, interleaved, factors
    _start("kv_append", a, n * a.n_kv, (*a.form.tables, x, blocks, offsets, n, a.n_kv, *steps))


def _rows(x: Any, a: CudaArena) -> tuple[int, int]:
    """Number of rows of x [R, n_kv, D], and floats from one to the next; TypeError or ValueError as `check` raises."""
    if x.ndim != 3 or (len(x) and x.strides[1:] != (4 * a.head_dim, 4)):
        raise ValueError(f"x has shape {tuple(x.shape)}, not rows of [{a.n_kv}, {a.head_dim}] in one piece each")
    for row in x[:1]:
        check("a row of x", row, np.float32, a.n_kv, a.head_dim)
    return len(x), x.strides[0] // 4


def kv_read(arena: KVArena, blocks: I32) -> F32:
    """Decoded true-space values [n, block_size, n_kv, D] of whole blocks."""
    a = own(arena)
    n = check("blocks", blocks, np.int32, -1).shape[0]
    y: F32 = cupy().empty((n, a.block_size, a.n_kv, a.head_dim), np.float32)
    _start("kv_read", a, n * a.block_size * a.n_kv, (*a.form.tables, y, blocks, n, a.block_size, a.n_kv))
    return y


def kv_pack(arena: KVArena, blocks: I32) -> U8:
    """Packed layout [n, block_size, n_kv, packed_bytes(D)] of whole blocks."""
    a = own(arena)
    n = check("blocks", blocks, np.int32, -1).shape[0]
    data: U8 = cupy().empty((n, a.block_size, a.n_kv, a.form.vector_bytes), np.uint8)
    _start("kv_pack", a, n * a.block_size * a.n_kv, (a.form.tables[0], data, blocks, n, a.block_size, a.n_kv))
    return data


def kv_unpack(arena: KVArena, blocks: I32, data: U8) -> None:
    """Store packed data, shaped as `kv_pack` returns it, into whole blocks."""
    a = own(arena)
    n = check("blocks", blocks, np.int32, -1).shape[0]
    check("data", data, np.uint8, n, a.block_size, a.n_kv, a.form.vector_bytes)
    _start("kv_unpack", a, n * a.block_size * a.n_kv, (a.form.tables[0], data, blocks, n, a.block_size, a.n_kv))


def _start(entry: str, a: CudaArena, vectors: int, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel that takes a warp for each vector of an arena."""
    data = heads(a)
    _, n_blocks, tiles, size = data.shape
    strides = np.int64(tiles * size), np.int64(n_blocks * tiles * size)
    made = kernel("kv.cu", entry, KV_TYPE=a.form.type)
    launch(made, (-(-vectors // WARPS),), (32 * WARPS,), (data, *strides, *arguments), shared=a.form.shared)
