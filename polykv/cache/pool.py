"""The arrays: K and V of every layer in blocks, shared by all sequences of one model.

All layers of a cache group (group.py) use the same block ids, so one block table per sequence and group says where
everything is; a sliding group can give blocks back while the full group keeps its.
Arrays grow on demand up to a limit; every figure in bytes is summed from the real arrays.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from polykv.cache.blocks import BlockManager
from polykv.cache.calibration import Calibration
from polykv.cache.codecs import exact_codecs
from polykv.cache.group import Stage, make_groups
from polykv.cache.identity import Identity
from polykv.config import CacheConfig, ModelConfig, Tier
from polykv.errors import CapacityError, ConfigError
from polykv.ops import Ops
from polykv.types import F32, I32, UNIT, Codec, Equalizer, KVArena, LayerKV

if TYPE_CHECKING:
    from polykv.cache.sequence import Sequence


def layer_kv(ops: Ops, model: ModelConfig, i: int, tier: Tier, block_size: int) -> LayerKV:
    """One block of layer i in every array that its tier needs."""
    layer = model.layers[i]

    def alloc(k: Codec, v: Codec, size: int, exact: LayerKV | None = None) -> LayerKV:
        shape = layer.n_kv, layer.head_dim, size
        return LayerKV(ops.kv_alloc(k, 1, *shape), ops.kv_alloc(v, 1, *shape, values=True), exact)

    if not tier.staged:
        return alloc(tier.k, tier.v, block_size)
    return alloc(tier.k, tier.v, UNIT, alloc(*exact_codecs(tier), block_size))


def exact_of(kv: LayerKV) -> LayerKV:
    """The exact cells of a layer that has some."""
    assert kv.exact is not None
    return kv.exact


class KVPool:
    """K/V storage of one model for any number of sequences.

    max_tokens: cells that each group may grow to; blocks of a finished sequence stay as prefix cache within it.
    salt: caches with different salts never find each other's prefixes.
    `counters`: "grown" (times arenas were enlarged on demand), "prefix_tokens" (reused by attach), "unscaled" (cells of
    a layer whose factors `read` undid), and those of `plan_segments`: "segments", "shared_segments", "shared_rows"
    (rows served by a segment that others read too), "shared_cells" and "cells" (read by a step, once per segment).

    Raises ConfigError for tiers that do not fit the model or a block size that is not a multiple of 8.
    """

    def __init__(
        self,
        ops: Ops,
        model: ModelConfig,
        cache: CacheConfig,
        *,
        fingerprint: str,
        max_tokens: int,
        salt: bytes = b"",
    ) -> None:
        if len(cache.tiers) != len(model.layers):
            raise ConfigError(f"{len(cache.tiers)} tiers for a model of {len(model.layers)} layers")
        if cache.block_size < 8 or cache.block_size % 8:
            raise ConfigError(f"block size {cache.block_size} is not a multiple of 8")
        if max_tokens < 1:
            raise ConfigError(f"room for {max_tokens} tokens: at least one is needed")
        self.ops = ops
        self.model = model
        self.tiers = cache.tiers
        self.block_size = cache.block_size
        self._max_tokens = max_tokens
        self.identity = Identity.of(model, cache, fingerprint)
        self._salt = salt
        # Where the chains of prefix hashes begin.
        self.seed = self._make_seed()
        self.calibration = Calibration()
        self.equalizers: tuple[Equalizer, ...] = self.calibration.equalizers(model)
        self.counters: Counter[str] = Counter()
        self.groups = make_groups(model, cache.tiers, cache.block_size)
        self._group_of = {i: g.index for g in self.groups if g.stage is not Stage.EXACT for i in g.layers}
        # One block to begin with: its arrays tell what a block really costs.
        self.managers = [BlockManager(1) for _ in self.groups]

        # Python threads take turns: one holds it for a whole step, or for one change of a sequence.
        self.lock = threading.RLock()
        # Everybody who holds blocks. torn: a change of theirs broke off; lost: one of them was forgotten, not freed.
        self.sequences: WeakSet[Sequence] = WeakSet()
        self.torn = self.lost = False
        # How often any of them changed: who took a look earlier knows whether it still holds.
        self.changes = 0
        self._layers = [layer_kv(ops, model, i, t, cache.block_size) for i, t in enumerate(cache.tiers)]

    def _make_seed(self) -> bytes:
        return hashlib.blake2b(self.identity.hash_seed() + self._salt, digest_size=16).digest()

    def equalize(self, calibration: Calibration) -> None:
        """Store channels times the factors of a calibration, from the first token on.

        Raises ConfigError when K or V was stored already (what was stored without factors cannot be read with them),
        when the cache has a calibration, or when this one was made for another model; nothing changes then.
        """
        with self.lock:
            if self.calibration.identity() != Calibration().identity():
                raise ConfigError("the cache has a calibration already: factors are applied once")
            if any(m.counters["alloc"] for m in self.managers):
                raise ConfigError(
                    "a calibration holds from the first token on, and this cache has stored keys without it: start a "
                    "new session with it (--calibration, polykv.load(..., calibration=...))"
                )
            equalizers = calibration.equalizers(self.model)
            self.identity = replace(self.identity, calibration=calibration.identity())
            self.calibration, self.equalizers, self.seed = calibration, equalizers, self._make_seed()

    def read(self, layer: int, blocks: I32) -> tuple[F32, F32]:
        """Decoded K and V of whole blocks of a layer, [n, block_size, n_kv, D] each, in true space: rotations and
        factors undone. For those who look at what is stored; attention reads codes and scales queries instead."""
        kv, e = self._layers[layer], self.equalizers[layer]
        k, v = (self.ops.fetch(self.ops.kv_read(arena, blocks)) for arena in (kv.k, kv.v))
        for x, factors in ((k, e.k), (v, e.v)):
            if factors is not None:
                x /= factors
                self.counters["unscaled"] += len(blocks) * kv.k.block_size
        return k, v

    def layer(self, i: int) -> LayerKV:
        """K and V of layer i; the same object for the life of the pool."""
        return self._layers[i]

    def group_of(self, layer: int) -> int:
        """Index of the group that a layer belongs to: that of its codes, which names the one of its exact cells."""
        return self._group_of[layer]

    def _arenas(self, group: int) -> list[KVArena]:
        g = self.groups[group]
        kvs = [self._layers[i] for i in g.layers]
        stored = [kv if g.stage is not Stage.EXACT else exact_of(kv) for kv in kvs]
        return [a for kv in stored for a in (kv.k, kv.v)]

    def copy_block(self, group: int, src: int, dst: int) -> None:
        """Copy block src to block dst in every layer of the group."""
        for arena in self._arenas(group):
            for a in arena.fields.values():
                a[dst] = a[src]

    def mend(self) -> None:
        """Count who holds what anew, from the tables of the living sequences, after a change that broke off."""
        # What nobody holds now may have been written by who was broken off.
        self.changes += 1
        sequences = list(self.sequences)
        for s in sequences:
            s.mend()
        for g, manager in enumerate(self.managers):
            refs = Counter(b for s in sequences for b in s.block_tables[g].held())
            pins = Counter(b for s in sequences for group, b in s.pins if group == g)
            manager.recount(refs, pins)
        self.torn = self.lost = False

    def max_blocks(self, group: int) -> int:
        """Blocks that a group may grow to."""
        return -(-self._max_tokens // self.groups[group].size)

    # -- room --------------------------------------------------------------------------------------------------
    def reserve(self, group: int, n_blocks: int) -> None:
        """Have arrays for at least `n_blocks` blocks in all (exactly that many when they have to grow).

        Raises CapacityError beyond the pool's limit.
        """
        have = self.managers[group].n_blocks
        if n_blocks > self.max_blocks(group):
            raise CapacityError(
                f"{self._name(group)} needs {n_blocks} blocks of {self.groups[group].size} tokens, the pool's limit is "
                f"{self.max_blocks(group)}: allow more tokens (--ctx)"
            )
        if n_blocks <= have:
            return
        # A growth that was interrupted (memory, Ctrl-C) may have enlarged some arenas already; they lose nothing.
        self.ops.kv_grow(self._arenas(group), n_blocks)
        self.managers[group].grow(n_blocks)

    def require(self, group: int, n: int) -> None:
        """Raise CapacityError unless n more blocks can be had; changes nothing."""
        left = self.max_blocks(group) - self.managers[group].n_used
        if n > left:
            raise CapacityError(
                f"{self._name(group)} needs {n} more blocks of {self.groups[group].size} tokens, {max(0, left)} of "
                f"{self.max_blocks(group)} are left: free a sequence or allow more tokens (--ctx)"
            )

    def make_room(self, group: int, n: int) -> None:
        """Grow so that n blocks can be taken, at the cost of cached prefixes only when the limit is reached."""
        self.require(group, n)
        manager = self.managers[group]
        short = n - manager.n_spare
        if short > 0:
            have = manager.n_blocks
            # Geometric growth keeps copying amortised. Some groups hold a window, not a context: small steps.
            g = self.groups[group]
            step = have // 8 if g.window or g.stage is Stage.EXACT else have // 2
            self.reserve(group, min(self.max_blocks(group), have + max(short, step)))
            self.counters["grown"] += 1

    def _name(self, group: int) -> str:
        g = self.groups[group]
        name = f"sliding-window cache (window {g.window})" if g.window else "cache"
        return name if g.stage is not Stage.EXACT else f"{name} of exact cells"

    # -- bytes -------------------------------------------------------------------------------------------------
    def block_nbytes(self, group: int) -> int:
        """Bytes of one block over all layers of the group."""
        return sum(a.block_nbytes for a in self._arenas(group))

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(a.nbytes for g in self.groups for a in self._arenas(g.index))

    @property
    def used_nbytes(self) -> int:
        """Bytes of blocks that are in use or pinned."""
        return sum(m.n_used * self.block_nbytes(g) for g, m in enumerate(self.managers))
