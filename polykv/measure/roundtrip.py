"""What a type does to vectors: store them in a backend's memory, read them back, compare.

    NMSE = mean of |x - y|^2 / |x|^2        cosine = mean of <x, y> / (|x| |y|)

over vectors x and what is read back, y. A mean of ratios, since every head of every layer has a softmax of its own: a
layer of long keys must not hide what happens to short ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.config import CacheConfig
from polykv.ops import BACKENDS, LoadedOps, load
from polykv.types import F32, UNIT, Codec, Slots


@dataclass(frozen=True)
class Loss:
    """NMSE and cosine of a round trip."""

    nmse: float
    cosine: float


def bits(codec: Codec, head_dim: int) -> float:
    """Bits in memory per value of a head, everything counted: codes, scales, padding, means."""
    return 8 * (codec.packed_bytes(head_dim) + codec.mean_bytes(head_dim) / UNIT) / head_dim


def runs(codec: Codec, head_dim: int, block_size: int = CacheConfig.block_size) -> list[str]:
    """Backends that store and read K and V of this type."""
    return [b for b in BACKENDS if load(b).supports_kv(codec, codec, head_dim, block_size) is None]


def round_trip(ops: LoadedOps, codec: Codec, x: F32) -> F32:
    """x [T, S, D] after a stay in the cache; series are stored as kv heads."""
    tokens, series, dim = x.shape
    size = CacheConfig.block_size
    n = -(-tokens // size)
    arena = ops.kv_alloc(codec, n, series, dim, size)
    t = np.arange(tokens, dtype=np.int32)
    ops.kv_append(arena, np.ascontiguousarray(x), Slots(t // size, t % size))
    return ops.kv_read(arena, np.arange(n, dtype=np.int32)).reshape(-1, series, dim)[:tokens]


def loss(x: F32, y: F32) -> Loss:
    """Of vectors x [..., D] and what became of them; zero vectors do not count, they are kept by every type.

    >>> loss(np.float32([[3, 4], [0, 0]]), np.float32([[3, 0], [0, 0]]))
    Loss(nmse=0.64, cosine=0.6)
    """
    a, b = (v.reshape(-1, v.shape[-1]).astype(np.float64) for v in (x, y))
    a, b = a[a.any(axis=1)], b[a.any(axis=1)]
    if not len(a):
        return Loss(0.0, 1.0)
    squares = (a * a).sum(axis=1)
    nmse = ((a - b) ** 2).sum(axis=1) / squares
    lengths = np.sqrt(squares * (b * b).sum(axis=1))
    # What decodes to zero has no direction.
    cosine = np.divide((a * b).sum(axis=1), lengths, out=np.zeros_like(squares), where=lengths > 0)
    return Loss(float(nmse.mean()), float(cosine.mean()))
