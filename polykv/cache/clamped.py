"""Vectors whose scale is the largest that fp16 can hold: what lay beyond it was clamped when they were stored.

Nothing is counted while tokens are stored; who wants to know looks at what the cache holds. Norms of that size mean a
model whose keys or values overflow float16, so a sound one has none.
"""

from __future__ import annotations

import numpy as np

from polykv.cache.pool import KVPool
from polykv.types import Codec, Family, KVArena

LARGEST = np.float16(65504)
# Blocks that are looked at in one go.
CHUNK = 1024
# Types with a minimum of 16 bits behind their scale.
RANGED = (Family.Q5_1, Family.Q4_1)


def at_limit(pool: KVPool) -> dict[str, int]:
    """How many vectors of K and of V that the cache holds, or held last in a free block, are at the limit.

    Types that hold floats as they are (f32, bf16) have none; of f16 the values themselves are looked at.
    """
    found = {"K": 0, "V": 0}
    if not any(m.counters["alloc"] for m in pool.managers):
        return found
    for i in range(len(pool.model.layers)):
        kv = pool.layer(i)
        for side, arena in (("K", kv.k), ("V", kv.v)):
            found[side] += _count(pool, arena)
    return found


def _count(pool: KVPool, arena: KVArena) -> int:
    codec = arena.codec
    if codec.family in (Family.F32, Family.BF16):
        return 0
    total = 0
    for at in range(0, arena.n_blocks, CHUNK):
        blocks = np.arange(at, min(at + CHUNK, arena.n_blocks), dtype=np.int32)
        vectors = pool.ops.fetch(pool.ops.kv_pack(arena, blocks))[:, : arena.block_size]
        total += int((np.abs(_scales(codec, arena.head_dim, vectors)) >= LARGEST).any(axis=-1).sum())
    return total


def _scales(codec: Codec, head_dim: int, vectors: np.ndarray) -> np.ndarray:
    """float16 [..., n] of packed vectors uint8 [..., bytes]: scales and minima, or the values of f16."""
    if codec.family is Family.F16:
        return np.ascontiguousarray(vectors).view("<f2")
    group = codec.group_bytes(codec.group(head_dim))
    groups = vectors.reshape(*vectors.shape[:-1], -1, group)
    scales = np.ascontiguousarray(groups[..., : 4 if codec.family in RANGED else 2])
    return scales.view("<f2").reshape(*vectors.shape[:-1], -1)
