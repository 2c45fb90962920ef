"""kv_*: where the codes of a cache live.

One array `bytes` uint8 [N, B, G, n]: block, token, kv head, code bytes of one vector. The bytes are those of the
exchange layout, except that a rotated codec keeps a vector of 16, 32 or 64 values in one group of that size
(lloyd_max.py says why); so packing is a copy, or one change of group size.
"""

from __future__ import annotations

import numpy as np

from polykv.ref import lloyd_max
from polykv.ref.codec import decode_stored, encode
from polykv.types import F32, I32, U8, Codec, KVArena, Slots


def kv_alloc(codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int) -> KVArena:
    """Zeroed storage for n_blocks blocks."""
    n = resident_bytes(codec, head_dim)
    return KVArena(codec, n_kv, head_dim, block_size, {"bytes": np.zeros((n_blocks, block_size, n_kv, n), np.uint8)})


def kv_append(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D] into the cells `slots`."""
    arena.fields["bytes"][slots.blocks, slots.offsets] = _to_resident(arena, encode(arena.codec, x))


def kv_read(arena: KVArena, blocks: I32) -> F32:
    """Decoded true-space values [n, block_size, n_kv, D] of whole blocks."""
    stored = read_stored(arena, blocks)
    if not arena.codec.rotated:
        return stored
    return np.asarray(leave_stored_space(arena, stored), np.float32)


def kv_pack(arena: KVArena, blocks: I32) -> U8:
    """Exchange layout [n, block_size, n_kv, exchange_bytes(D)] of whole blocks."""
    data: U8 = arena.fields["bytes"][blocks]  # type: ignore[assignment]
    if not arena.codec.rotated:
        return data
    return lloyd_max.to_exchange(arena.codec, data, arena.codec.group(arena.head_dim))


def kv_unpack(arena: KVArena, blocks: I32, data: U8) -> None:
    """Store exchange data [n, block_size, n_kv, exchange_bytes(D)] into whole blocks."""
    arena.fields["bytes"][blocks] = _to_resident(arena, data)


def read_stored(arena: KVArena, blocks: I32) -> F32:
    """Values of whole blocks in stored space [n, block_size, n_kv, D] (D padded to whole groups when rotated)."""
    data: U8 = arena.fields["bytes"][blocks]  # type: ignore[assignment]
    return decode_stored(arena.codec, data, arena.head_dim, arena.codec.group(arena.head_dim))


def enter_stored_space(arena: KVArena, x: np.ndarray) -> np.ndarray:
    """Bring vectors [..., D] to the space in which the arena's codes live."""
    if not arena.codec.rotated:
        return x
    return np.asarray(lloyd_max.rotate_in(arena.codec, x, arena.codec.group(arena.head_dim)))


def leave_stored_space(arena: KVArena, y: np.ndarray) -> np.ndarray:
    """Inverse of `enter_stored_space`."""
    if not arena.codec.rotated:
        return y
    return np.asarray(lloyd_max.rotate_out(arena.codec, y, arena.codec.group(arena.head_dim), arena.head_dim))


def stored_dim(arena: KVArena) -> int:
    """Length of a vector in stored space."""
    return arena.codec.resident_dim(arena.head_dim) if arena.codec.rotated else arena.head_dim


def resident_bytes(codec: Codec, head_dim: int) -> int:
    """Bytes that one vector takes in memory."""
    if not codec.rotated:
        return codec.exchange_bytes(head_dim)
    group = codec.group(head_dim)
    return codec.resident_dim(head_dim) // group * lloyd_max.group_bytes(group)


def _to_resident(arena: KVArena, data: U8) -> U8:
    if not arena.codec.rotated:
        return data
    return lloyd_max.to_resident(arena.codec, data, arena.codec.group(arena.head_dim))
