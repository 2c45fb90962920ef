"""What a type does to vectors: store them in a backend's memory, read them back, compare.

    NMSE = mean of |x - y|^2 / |x|^2        cosine = mean of <x, y> / (|x| |y|)

over vectors x and what is read back, y. A mean of ratios, since every head of every layer has a softmax of its own: a
layer of long keys must not hide what happens to short ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.cache.codecs import codec as named
from polykv.ops import LoadedOps
from polykv.types import F32, UNIT, Codec, KVArena, Seals, Slots

HALF = named("f16")


@dataclass(frozen=True)
class Loss:
    """NMSE and cosine of a round trip."""

    nmse: float
    cosine: float


def round_trip(ops: LoadedOps, codec: Codec, x: F32) -> F32:
    """x [T, S, D] after a stay in the cache; series are stored as kv heads. As there, a centered type codes whole units
    of tokens, and tokens of a last, incomplete one are kept as float16."""
    tokens, series, dim = x.shape
    size = ops.preferred_block()
    cells = ops.kv_alloc(HALF if codec.centered else codec, -(-tokens // size), series, dim, size)
    t = np.arange(tokens, dtype=np.int32)
    ops.kv_append(cells, np.ascontiguousarray(x), Slots(t // size, t % size))
    y = _read(ops, cells)[:tokens]
    if codec.centered:
        units = np.arange(tokens // UNIT, dtype=np.int32)
        sealed = ops.kv_alloc(codec, len(units), series, dim, UNIT)
        blocks = np.arange(len(units) * UNIT // size, dtype=np.int32).reshape(-1, UNIT // size)
        ops.kv_seal(sealed, cells, Seals(blocks, units, np.zeros_like(units)))
        y[: len(units) * UNIT] = _read(ops, sealed)
    return y


def _read(ops: LoadedOps, cells: KVArena) -> F32:
    """All cells of an arena, [T, S, D]."""
    return ops.fetch(ops.kv_read(cells, np.arange(cells.n_blocks, dtype=np.int32))).reshape(
        -1, cells.n_kv, cells.head_dim
    )


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
