"""kv_*: where the codes of a cache live.

One array `bytes` uint8 [N, B, G, n]: block, token, kv head, packed bytes of one vector (codec.py); packing is a copy.
Centered codecs have a second one, `means` uint8 [N, G, m]: one vector per block and kv head, in the space of the
codes, that was subtracted before coding. Its bytes are those of q8_0, filled up with zeros. docs/CENTERED.md says what
for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polykv.ref import quants_legacy, rotation
from polykv.ref.blocks import flat, split
from polykv.ref.codec import decode_groups, encode_groups
from polykv.ref.scalar import F16_MAX, int8_blocks
from polykv.types import F32, I32, U8, Codec, KVArena, Seals, Slots


def kv_alloc(
    codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int, *, values: bool = False
) -> KVArena:
    """Zeroed storage for n_blocks blocks. K and V lie alike."""
    fields: dict[str, np.ndarray] = {
        "bytes": np.zeros((n_blocks, block_size, n_kv, codec.packed_bytes(head_dim)), np.uint8)
    }
    if codec.centered:
        fields["means"] = np.zeros((n_blocks, n_kv, codec.mean_bytes(head_dim)), np.uint8)
    return KVArena(codec, n_kv, head_dim, block_size, fields)


def kv_grow(arenas: Sequence[KVArena], n_blocks: int) -> None:
    """Have n_blocks blocks in every arena, with what they hold; new ones are zero."""
    for arena in arenas:
        larger = kv_alloc(arena.codec, n_blocks, arena.n_kv, arena.head_dim, arena.block_size)
        kept = min(n_blocks, arena.n_blocks)
        for name, a in larger.fields.items():
            a[:kept] = arena.fields[name][:kept]
        # The arena object stays, only its arrays are replaced: whoever holds it sees the larger ones.
        arena.fields.update(larger.fields)


def kv_append(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D] into the cells `slots`; for a centered codec, x less the means of their blocks."""
    if arena.codec.centered:
        x = x - np.asarray(leave_stored_space(arena, _means(arena, slots.blocks)), np.float32)
    arena.fields["bytes"][slots.blocks, slots.offsets] = encode_groups(arena.codec, x, _group(arena))


def kv_seal(codes: KVArena, exact: KVArena, seals: Seals) -> None:
    """Code the exact cells of complete units, after storing their means if the codec is centered."""
    n, unit = len(seals.coded), codes.block_size
    x = kv_read(exact, seals.exact.reshape(-1)).reshape(n, unit, codes.n_kv, codes.head_dim)
    if codes.codec.centered:
        counted = np.arange(unit) >= seals.sinks[:, None]
        total = np.where(counted[..., None, None], x, np.float32(0)).sum(axis=1, dtype=np.float64)
        mean = total / np.maximum(counted.sum(axis=1), 1)[:, None, None]
        _put_means(codes, seals.coded, enter_stored_space(codes, mean).astype(np.float32))
    cells = Slots(np.repeat(seals.coded, unit), np.tile(np.arange(unit, dtype=np.int32), n))
    kv_append(codes, x.reshape(n * unit, codes.n_kv, codes.head_dim), cells)


def kv_read(arena: KVArena, blocks: I32) -> F32:
    """Decoded true-space values [n, block_size, n_kv, D] of whole blocks."""
    return np.asarray(leave_stored_space(arena, read_stored(arena, blocks)), np.float32)


def kv_pack(arena: KVArena, blocks: I32) -> U8:
    """Packed layout [n, packed_rows(D, block_size), n_kv, packed_bytes(D)] of whole blocks."""
    data: U8 = arena.fields["bytes"][blocks]  # type: ignore[assignment]
    if not arena.codec.centered:
        return data
    rows = arena.codec.packed_rows(arena.head_dim, arena.block_size) - arena.block_size
    means = np.zeros((len(blocks), arena.n_kv, rows * data.shape[-1]), np.uint8)
    means[..., : arena.codec.mean_bytes(arena.head_dim)] = arena.fields["means"][blocks]
    means = means.reshape(len(blocks), arena.n_kv, rows, data.shape[-1]).transpose(0, 2, 1, 3)
    return np.concatenate([data, means], axis=1)


def kv_unpack(arena: KVArena, blocks: I32, data: U8) -> None:
    """Store packed data, shaped as `kv_pack` returns it, into whole blocks."""
    arena.fields["bytes"][blocks] = data[:, : arena.block_size]
    if arena.codec.centered:
        rows = data[:, arena.block_size :].transpose(0, 2, 1, 3).reshape(len(blocks), arena.n_kv, -1)
        arena.fields["means"][blocks] = rows[..., : arena.codec.mean_bytes(arena.head_dim)]


def read_stored(arena: KVArena, blocks: I32) -> F32:
    """Values of whole blocks in stored space [n, block_size, n_kv, D'] (D' = `Codec.stored_dim`)."""
    y = decode_groups(arena.codec, arena.fields["bytes"][blocks], arena.head_dim, _group(arena))  # type: ignore[arg-type]
    return y + _means(arena, blocks)[:, None] if arena.codec.centered else y


def enter_stored_space(arena: KVArena, x: np.ndarray) -> np.ndarray:
    """Bring vectors [..., D] to the space in which the arena's codes live."""
    if not arena.codec.rotated:
        return x
    return np.asarray(rotation.rotate_in(arena.codec, x, arena.codec.turn(arena.head_dim)))


def leave_stored_space(arena: KVArena, y: np.ndarray) -> np.ndarray:
    """Inverse of `enter_stored_space`."""
    if not arena.codec.rotated:
        return y
    return np.asarray(rotation.rotate_out(arena.codec, y, arena.codec.turn(arena.head_dim), arena.head_dim))


def stored_dim(arena: KVArena) -> int:
    """Length of a vector in stored space."""
    return arena.codec.stored_dim(arena.head_dim)


def _group(arena: KVArena) -> int:
    return arena.codec.group(arena.head_dim)


def _put_means(arena: KVArena, blocks: I32, mean: F32) -> None:
    """Store the means [n, n_kv, D'] of blocks."""
    values = split(np.pad(mean, [(0, 0), (0, 0), (0, -mean.shape[-1] % 32)]), 32)
    q, d = int8_blocks(values, limit=F16_MAX)
    data = flat(np.concatenate([d.astype("<f2").view(np.uint8), q.view(np.uint8)], axis=-1))
    arena.fields["means"][blocks, :, : data.shape[-1]] = data


def _means(arena: KVArena, blocks: I32) -> F32:
    """Means of blocks, float32 [n, n_kv, D']."""
    dim = stored_dim(arena)
    data: U8 = arena.fields["means"][blocks][..., : 34 * -(-dim // 32)]  # type: ignore[assignment]
    return flat(quants_legacy.q8_0(split(data, 34)))[..., :dim]
