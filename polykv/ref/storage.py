"""kv_*: where the codes of a cache live.

One array `bytes` uint8 [N, B, G, n]: block, token, kv head, packed bytes of one vector (codec.py); packing is a copy.
"""

from __future__ import annotations

import numpy as np

from polykv.ref import rotation
from polykv.ref.codec import decode_groups, encode_groups
from polykv.types import F32, I32, U8, Codec, KVArena, Slots


def kv_alloc(codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int) -> KVArena:
    """Zeroed storage for n_blocks blocks."""
    n = codec.packed_bytes(head_dim)
    return KVArena(codec, n_kv, head_dim, block_size, {"bytes": np.zeros((n_blocks, block_size, n_kv, n), np.uint8)})


def kv_append(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D] into the cells `slots`."""
    arena.fields["bytes"][slots.blocks, slots.offsets] = encode_groups(arena.codec, x, _group(arena))


def kv_read(arena: KVArena, blocks: I32) -> F32:
    """Decoded true-space values [n, block_size, n_kv, D] of whole blocks."""
    return np.asarray(leave_stored_space(arena, read_stored(arena, blocks)), np.float32)


def kv_pack(arena: KVArena, blocks: I32) -> U8:
    """Packed layout [n, block_size, n_kv, packed_bytes(D)] of whole blocks."""
    data: U8 = arena.fields["bytes"][blocks]  # type: ignore[assignment]
    return data


def kv_unpack(arena: KVArena, blocks: I32, data: U8) -> None:
    """Store packed data [n, block_size, n_kv, packed_bytes(D)] into whole blocks."""
    arena.fields["bytes"][blocks] = data


def read_stored(arena: KVArena, blocks: I32) -> F32:
    """Values of whole blocks in stored space [n, block_size, n_kv, D] (D padded to whole groups when rotated)."""
    return decode_groups(arena.codec, kv_pack(arena, blocks), arena.head_dim, _group(arena))


def enter_stored_space(arena: KVArena, x: np.ndarray) -> np.ndarray:
    """Bring vectors [..., D] to the space in which the arena's codes live."""
    if not arena.codec.rotated:
        return x
    return np.asarray(rotation.rotate_in(arena.codec, x, _group(arena)))


def leave_stored_space(arena: KVArena, y: np.ndarray) -> np.ndarray:
    """Inverse of `enter_stored_space`."""
    if not arena.codec.rotated:
        return y
    return np.asarray(rotation.rotate_out(arena.codec, y, _group(arena), arena.head_dim))


def stored_dim(arena: KVArena) -> int:
    """Length of a vector in stored space."""
    return arena.codec.resident_dim(arena.head_dim) if arena.codec.rotated else arena.head_dim


def _group(arena: KVArena) -> int:
    return arena.codec.group(arena.head_dim)
