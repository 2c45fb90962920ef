"""A storage backend for cache tests that keeps values as they are, and a writer that stores token ids as K/V."""

from __future__ import annotations

from typing import Any

import numpy as np

import polykv.cache.codecs as codecs
from polykv.cache.group import CacheGroup, Stage, exact_from
from polykv.cache.pool import KVPool, exact_of
from polykv.cache.segments import plan_segments
from polykv.cache.sequence import Sequence
from polykv.config import CacheConfig, LayerConfig, Mixer, ModelConfig, RopeConfig
from polykv.types import UNIT, KVArena, Seals, Segments, Slots

VOCAB = 1000


class PlainOps:
    """The storage operations of `Ops` on plain float32 arrays; new arrays are poisoned with NaN."""

    name = "plain"

    def supports_kv(self, k: Any, v: Any, head_dim: int, block_size: int) -> str | None:
        return None

    def unusable(self) -> str | None:
        return None

    def supports_stages(self) -> str | None:
        return None

    def fetch(self, x: np.ndarray) -> np.ndarray:
        return x

    def kv_alloc(
        self, codec: Any, n_blocks: int, n_kv: int, head_dim: int, block_size: int, *, values: bool = False
    ) -> KVArena:
        x = np.full((n_blocks, block_size, n_kv, head_dim), np.nan, np.float32)
        return KVArena(codec, n_kv, head_dim, block_size, {"x": x})

    def kv_grow(self, arenas: list[KVArena], n_blocks: int) -> None:
        for arena in arenas:
            larger = self.kv_alloc(arena.codec, n_blocks, arena.n_kv, arena.head_dim, arena.block_size).fields["x"]
            kept = min(n_blocks, arena.n_blocks)
            larger[:kept] = arena.fields["x"][:kept]
            arena.fields["x"] = larger

    def kv_append(self, arena: KVArena, x: np.ndarray, slots: Slots) -> None:
        arena.fields["x"][slots.blocks, slots.offsets] = x

    def kv_read(self, arena: KVArena, blocks: np.ndarray) -> np.ndarray:
        return arena.fields["x"][blocks]

    def kv_seal(self, codes: KVArena, exact: KVArena, seals: Seals) -> None:
        cells = exact.fields["x"][seals.exact]
        codes.fields["x"][seals.coded] = cells.reshape(len(seals.coded), UNIT, *cells.shape[3:])

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
        s, kv = slots[pool.group_of(i)], pool.layer(i)
        new = kv if kv.exact is None else kv.exact
        pool.ops.kv_append(new.k, x, s)
        pool.ops.kv_append(new.v, -x, s)
        if kv.exact is not None and s.seals is not None:
            pool.ops.kv_seal(kv.k, kv.exact.k, s.seals)
            pool.ops.kv_seal(kv.v, kv.exact.v, s.seals)


def step(seq: Sequence, tokens: list[int]) -> None:
    first = seq.length
    slots = seq.extend(tokens)
    write(seq.pool, slots, tokens, first)
    seq.commit()


def check_contents(seq: Sequence, expected: list[int], atol: float = 0.0) -> None:
    """Every cell that a query at position `length` sees holds the K/V of the expected token."""
    assert seq.tokens == expected and seq.length == len(expected)
    pool = seq.pool
    for group, table in zip(pool.groups, seq.tables, strict=True):
        held = list(group.held(seq.length))
        assert len(table) == group.n_blocks(seq.length)
        assert [i for i, b in enumerate(table) if b >= 0] == held
        if not held:
            continue
        low = min(group.first_cell(seq.length), seq.length)
        # Sinks are seen however far back they are.
        sink = group.sink if group.stage is Stage.EXACT else 0
        read = [c for c in range(min(seq.length, len(table) * group.size)) if c >= low or c < sink]
        blocks, size = np.array([table[i] for i in held], np.int32), group.size
        at = [held.index(c // size) * size + c % size for c in read]
        for i in group.layers:
            kv = pool.layer(i) if group.stage is not Stage.EXACT else exact_of(pool.layer(i))
            want = vectors(pool, i, expected, 0)[read]
            for arena, sign in ((kv.k, 1), (kv.v, -1)):
                cells = pool.ops.kv_read(arena, blocks).reshape(-1, *want.shape[1:])
                # Written so that a NaN is an error.
                assert (np.abs(cells[at] - sign * want) <= atol).all(), (seq.length, i, sign)


def check_segments(pool: KVPool, batch: list[tuple[Sequence, int]]) -> None:
    """The plan covers exactly the cells that every row sees, each once and from the right block."""
    plans = plan_segments(pool, batch)
    width = max((seq.length for seq, _ in batch), default=0)
    tables = [[np.array(t, np.int32) for t in seq.tables] for seq, _ in batch]
    for group, plan in zip(pool.groups, plans, strict=True):
        parts = [(group, plan, _by_row(plan, group.size, width))]
        if group.stage is Stage.EXACT:
            continue
        if plan.exact is not None:
            exact = pool.groups[group.exact]
            parts.append((exact, plan.exact, _by_row(plan.exact, exact.size, width)))
        row = 0
        for (seq, n), held in zip(batch, tables, strict=True):
            for p in range(seq.length - n, seq.length):
                _check_row(group, [(g, s.first, cells.get(row), held[g.index]) for g, s, cells in parts], p)
                assert all(s.positions[row] == p for _, s, _ in parts)
                row += 1
        assert all(row == len(s.positions) and set(cells) <= set(range(row)) for _, s, cells in parts)


def _check_row(group: CacheGroup, parts: list[tuple[CacheGroup, int, np.ndarray | None, np.ndarray]], p: int) -> None:
    """parts: a group, the first cell that counts in its plan, the block of every cell that the row reads, the table."""
    cells = np.arange(group.first_cell(p), p + 1)
    early = (cells < group.sink) | (cells >= exact_from(p, group.recent))
    times = np.zeros(len(cells), int)
    for g, first, blocks, table in parts:
        if blocks is None:
            continue
        read = (blocks[cells] != UNREAD) & (cells >= first)
        times += read
        found = blocks[cells[read]]
        assert (found >= 0).all() and np.array_equal(found, table[cells[read] // g.size]), p
        assert g.stage is Stage.WHOLE or (early[read] == (g.stage is Stage.EXACT)).all(), p
    assert (times == 1).all(), (p, cells[times != 1], times[times != 1])


# Not the id of a block, and not -1, which stands in tables for a block that was given back.
UNREAD = -2


def _by_row(plan: Segments, size: int, width: int) -> dict[int, np.ndarray]:
    """Row -> the block of every cell that it reads, by position; UNREAD elsewhere. Positions up to width at least."""
    seen: dict[int, np.ndarray] = {}
    ends: dict[int, int] = {}
    width = max([width, *(s.start + s.length for s in plan)])
    for s in plan:
        assert s.start % size == 0 and len(s.rows) and s.length > 0
        assert (len(s.blocks) - 1) * size < s.length <= len(s.blocks) * size
        blocks = np.repeat(s.blocks, size)[: s.length]
        for r in s.rows.tolist():
            end = ends.get(r, -1)
            assert s.start >= end and (end < 0 or s.start % UNIT == 0)
            ends[r] = s.start + s.length
            seen.setdefault(r, np.full(width, UNREAD))[s.start : ends[r]] = blocks
    return seen
