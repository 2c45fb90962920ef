"""What a pool and its agents really hold, in bytes of the arrays, and what separate float16 caches would hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from polykv.cache.codecs import codec
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.prompt import common_prefix


@dataclass(frozen=True)
class PoolMemory:
    """Measured bytes.

    shared: blocks of the document, and those that agents forked from agents have in common, each held once. private:
    per agent, blocks that only it holds. f16_per_agent: what the
    same tokens of each agent would take in a float16 cache of its own (same block size and windows), f16_equivalent
    their sum. cells: tokens held, those of the document once; separate_cells: without sharing. Bytes count whole
    blocks: a partly filled last block of the document is copied by every agent that writes into it.
    """

    kv: str
    prefix_tokens: int
    shared: int
    private: list[int]
    f16_per_agent: list[int]
    cells: int
    separate_cells: int

    @property
    def total(self) -> int:
        return self.shared + sum(self.private)

    @property
    def f16_equivalent(self) -> int:
        return sum(self.f16_per_agent)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "kv": self.kv,
            "prefix_tokens": self.prefix_tokens,
            "bytes_shared": self.shared,
            "bytes_private": self.private,
            "bytes_f16_per_agent": self.f16_per_agent,
            "bytes_total": self.total,
            "bytes_f16": self.f16_equivalent,
            "cells": self.cells,
            "cells_separate": self.separate_cells,
        }


def measure(pool: KVPool, document: Sequence, agents: Iterable[Sequence], kv: str) -> PoolMemory:
    """Count the blocks that the document and the agents hold, times the bytes of a block in the real arrays."""
    agents = list(agents)
    here = [pool.block_nbytes(g.index) for g in pool.groups]
    f16 = [f16_block_nbytes(pool, g.index) for g in pool.groups]
    held = [a.used_blocks() for a in agents]
    shared = [
        blocks | {b for b, holders in Counter(b for a in held for b in a[g]).items() if holders > 1}
        for g, blocks in enumerate(document.used_blocks())
    ]
    private = [[blocks - common for blocks, common in zip(a, shared, strict=True)] for a in held]
    return PoolMemory(
        kv,
        document.length,
        _nbytes(shared, here),
        [_nbytes(p, here) for p in private],
        [_nbytes(a, f16) for a in held],
        document.length + sum(a.length - len(common_prefix(document.tokens, a.tokens)) for a in agents),
        sum(a.length for a in agents),
    )


def f16_block_nbytes(pool: KVPool, group: int) -> int:
    """Bytes of one block over the layers of a group if K and V were float16, from arrays that the backend allocates."""
    f16 = codec("f16")
    total = 0
    for i in pool.groups[group].layers:
        k = pool.layer(i).k
        total += 2 * pool.ops.kv_alloc(f16, 1, k.n_kv, k.head_dim, k.block_size).block_nbytes
    return total


def _nbytes(blocks: list[set[int]], block_nbytes: list[int]) -> int:
    return sum(len(b) * n for b, n in zip(blocks, block_nbytes, strict=True))
