"""Faults that kernels and caches really have had, put into the cache of a prompt on purpose.

A gate that lets one of them pass proves nothing. Each changes the K or V of a sequence that was just read: keys too
long by a fifth, values of one layer lost, keys turned to a wrong position, heads taken for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.config import Tier
from polykv.errors import ConfigError
from polykv.model.rope import angles
from polykv.types import F32, I32, Slots

# (pool, layer, positions [T], K or V [T, G, D]) -> the same, damaged.
Change = Callable[[KVPool, int, I32, F32], F32]


def keys_scaled(pool: KVPool, sequence: Sequence) -> None:
    """Every key times 1.2."""
    for layer in range(len(pool.model.layers)):
        _change(pool, sequence, layer, lambda p, i, at, k: k * np.float32(1.2), None)


def values_lost(pool: KVPool, sequence: Sequence) -> None:
    """Values of the middle layer are 0."""
    _change(pool, sequence, len(pool.model.layers) // 2, None, lambda p, i, at, v: np.zeros_like(v))


def keys_turned(pool: KVPool, sequence: Sequence) -> None:
    """Every key stands one position after its own."""
    for layer in range(len(pool.model.layers)):
        _change(pool, sequence, layer, lambda p, i, at, k: _turned(p, i, np.ones_like(at), k), None)


def keys_left_behind(pool: KVPool, sequence: Sequence, keep: int, by: int) -> None:
    """Keys from position `keep` on stand `by` positions after their own, as if a context shift had moved cells without
    turning their keys."""
    for layer in range(len(pool.model.layers)):
        _change(pool, sequence, layer, lambda p, i, at, k: _turned(p, i, np.where(at < keep, 0, by), k), None)


def heads_swapped(pool: KVPool, sequence: Sequence) -> None:
    """Kv heads in the opposite order; where there is one, the halves of its values."""
    for layer in range(len(pool.model.layers)):
        _change(pool, sequence, layer, None, lambda p, i, at, v: _swapped(v))


DAMAGES: dict[str, Callable[[KVPool, Sequence], None]] = {
    "keys times 1.2": keys_scaled,
    "values of one layer lost": values_lost,
    "keys one position off": keys_turned,
    "heads swapped": heads_swapped,
}


def check_exact(tiers: Iterable[Tier]) -> None:
    """Raise ConfigError for types whose cache cannot be damaged here: those with exact cells."""
    if any(t.staged for t in tiers):
        raise ConfigError("--self-test: types with exact cells cannot be damaged on purpose: take --base f16")


def _turned(pool: KVPool, layer: int, by: I32, k: F32) -> F32:
    """Keys, each turned by so many positions."""
    turn = angles(pool.model.layers[layer].rope, by.astype(np.int32))
    # Magnitude belongs to the key already.
    size = np.sqrt(turn.cos**2 + turn.sin**2)
    turn.cos[...] /= size
    turn.sin[...] /= size
    return pool.ops.fetch(pool.ops.rope(np.ascontiguousarray(k), turn))


def _swapped(v: F32) -> F32:
    if v.shape[1] > 1:
        return v[:, ::-1]
    return np.roll(v, v.shape[2] // 2, axis=2)


def _change(pool: KVPool, sequence: Sequence, layer: int, k: Change | None, v: Change | None) -> None:
    """Read the cells of a layer, change them, write them back. For caches whose blocks are one stage."""
    check_exact(pool.tiers)
    table = sequence.block_tables[pool.group_of(layer)]
    blocks: I32 = table.ids[table.first :].copy()
    size = pool.block_size
    at = table.first * size + np.arange(len(blocks) * size, dtype=np.int32)
    slots = Slots(np.repeat(blocks, size), np.tile(np.arange(size, dtype=np.int32), len(blocks)))
    kv = pool.layer(layer)
    for arena, change in ((kv.k, k), (kv.v, v)):
        if change is not None:
            x = pool.ops.fetch(pool.ops.kv_read(arena, blocks)).reshape(-1, arena.n_kv, arena.head_dim)
            pool.ops.kv_append(arena, np.ascontiguousarray(change(pool, layer, at, x)), slots)
