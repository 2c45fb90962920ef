"""A storage backend for cache tests that keeps values as they are, and a writer that stores token ids as K/V."""

from __future__ import annotations

from typing import Any

import numpy as np

import polykv.cache.codecs as codecs
from polykv.cache.pool import KVPool
from polykv.cache.segments import plan_segments
from polykv.cache.sequence import Sequence
from polykv.config import CacheConfig, LayerConfig, Mixer, ModelConfig, RopeConfig
from polykv.types import UNIT, KVArena, Slots

VOCAB = 1000


class PlainOps:
    """The storage operations of `Ops` on plain float32 arrays; new arrays are poisoned with NaN."""

    name = "plain"

    def supports_kv(self, k: Any, v: Any, head_dim: int, block_size: int) -> str | None:
        return None

    def kv_alloc(self, codec: Any, n_blocks: int, n_kv: int, head_dim: int, block_size: int) -> KVArena:
        x = np.full((n_blocks, block_size, n_kv, head_dim), np.nan, np.float32)
        return KVArena(codec, n_kv, head_dim, block_size, {"x": x})

    def kv_append(self, arena: KVArena, x: np.ndarray, slots: Slots) -> None:
        arena.fields["x"][slots.blocks, slots.offsets] = x

    def kv_read(self, arena: KVArena, blocks: np.ndarray) -> np.ndarray:
        return arena.fields["x"][blocks]

    def kv_pack(self, arena: KVArena, blocks: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(arena.fields["x"][blocks]).view(np.uint8)

    def kv_unpack(self, arena: KVArena, blocks: np.ndarray, data: np.ndarray) -> None:
        arena.fields["x"][blocks] = np.ascontiguousarray(data).view(np.float32)


def model(windows: tuple[int, ...] = (0, 96, 0), head_dim: int = 32, n_kv: int = 1, base: float = 1e4) -> ModelConfig:
    rope = RopeConfig(base, head_dim, False)
    layers = tuple(
        LayerConfig(Mixer.SLIDING if w else Mixer.FULL, n_kv, n_kv, head_dim, 64, rope, head_dim**-0.5, w)
        for w in windows
    )
    return ModelConfig("llama", "fake", 32, VOCAB, 100_000, 1e-5, layers)


def make_pool(
    ops: Any,
    config: ModelConfig | None = None,
    *,
    tier: str = "f32",
    block_size: int = 32,
    max_tokens: int = 4096,
    fingerprint: str = "fake",
    salt: bytes = b"",
) -> KVPool:
    config = config or model()
    cache = CacheConfig(codecs.parse_tiers(tier, len(config.layers)), block_size)
    return KVPool(ops, config, cache, fingerprint=fingerprint, max_tokens=max_tokens, salt=salt)


def vectors(pool: KVPool, layer: int, tokens: list[int], first: int) -> np.ndarray:
    """Distinct K/V rows [T, n_kv, D] for tokens at positions first, first + 1, ...: functions of token and position."""
    c = pool.model.layers[layer]
    t = np.asarray(tokens, np.float32)[:, None, None]
    p = np.arange(first, first + len(tokens), dtype=np.float32)[:, None, None]
    d = np.arange(c.head_dim, dtype=np.float32)[None, None]
    h = np.arange(c.n_kv, dtype=np.float32)[None, :, None]
    return np.asarray(np.sin(t * 0.37 + p * 1.7 + d * 0.9 + h + layer), np.float32)


def write(pool: KVPool, slots: list[Slots], tokens: list[int], first: int) -> None:
    """What the model does between `extend` and `commit`."""
    for i in range(len(pool.model.layers)):
        x = vectors(pool, i, tokens, first)
        s = slots[pool.group_of(i)]
        pool.ops.kv_append(pool.layer(i).k, x, s)
        pool.ops.kv_append(pool.layer(i).v, -x, s)


def step(seq: Sequence, tokens: list[int]) -> None:
    first = seq.length
    slots = seq.extend(tokens)
    write(seq.pool, slots, tokens, first)
    seq.commit()


def check_contents(seq: Sequence, expected: list[int], atol: float = 0.0) -> None:
    """Every cell that a query at position `length` sees holds the K/V of the expected token."""
    assert seq.tokens == expected and seq.length == len(expected)
    pool = seq.pool
    for i in range(len(pool.model.layers)):
        g = pool.group_of(i)
        table = seq.tables[g]
        assert len(table) == -(-seq.length // pool.block_size)
        low = pool.groups[g].first_cell(seq.length)
        first = low // pool.block_size
        assert -1 not in table[first:]
        if low >= seq.length:
            continue
        blocks = np.array(table[first:], np.int32)
        want = vectors(pool, i, expected[low:], low)
        for arena, sign in ((pool.layer(i).k, 1), (pool.layer(i).v, -1)):
            cells = pool.ops.kv_read(arena, blocks).reshape(-1, *want.shape[1:])
            got = cells[low - first * pool.block_size : seq.length - first * pool.block_size]
            np.testing.assert_allclose(got, sign * want, atol=atol, rtol=0)


def check_segments(pool: KVPool, batch: list[tuple[Sequence, int]]) -> None:
    """The plan covers exactly the cells that every row sees, each once and from the right block."""
    size = pool.block_size
    plans = plan_segments(pool, batch)
    for group, plan in zip(pool.groups, plans, strict=True):
        seen: dict[int, list[tuple[int, int, list[int]]]] = {}
        for s in plan:
            assert s.start % size == 0 and len(s.rows) and s.length > 0
            assert (len(s.blocks) - 1) * size < s.length <= len(s.blocks) * size
            for r in s.rows.tolist():
                seen.setdefault(r, []).append((s.start, s.length, s.blocks.tolist()))
        row = 0
        for seq, n in batch:
            for p in range(seq.length - n, seq.length):
                assert plan.positions[row] == p
                cells = {}
                end = -1
                for start, length, blocks in seen[row]:
                    assert start >= end and (end < 0 or start % UNIT == 0)
                    end = start + length
                    cells |= {c: blocks[(c - start) // size] for c in range(start, end)}
                table = seq.tables[group.index]
                for c in range(group.first_cell(p), p + 1):
                    assert cells[c] == table[c // size] >= 0
                row += 1
        assert row == len(plan.positions) and set(seen) == set(range(row))
