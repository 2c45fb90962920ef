"""What a pool and its agents really hold, in bytes of the arrays, and what separate float16 caches would hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from polykv.cache.codecs import codec
from polykv.cache.group import make_groups
from polykv.cache.pool import KVPool, layer_kv
from polykv.cache.sequence import Sequence
from polykv.config import Tier


@dataclass(frozen=True)
class PoolMemory:
    """Measured bytes.

    shared: blocks of the document, and those that agents forked from agents have in common, each held once. private:
    per agent, blocks that only it holds. f16_per_agent: what the same tokens of each agent would take in a float16
    cache of its own (same block size and windows), f16_equivalent their sum. cells: cells of blocks that hold a token,
    each once however many share it; separate_cells: the sum over the agents, each for itself. Cells are those of one
    layer, of the group that sees furthest back. A partly filled last block is copied by every agent that writes into
    it: bytes count the whole copy, cells what is filled of it.
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
        [f16_nbytes(pool, a.length) for a in agents],
        _cells([document, *agents]),
        sum(_cells([a]) for a in agents),
    )


def _cells(sequences: Iterable[Sequence]) -> int:
    """Cells that hold a token of any of the sequences, of the layers that see furthest back. What a sequence has coded
    is not counted again for being exact as well: sinks, and positions that are recent."""
    filled: dict[tuple[int, int], int] = {}
    for s in sequences:
        coded = max(s.pool.groups, key=lambda g: g.window or math.inf)
        units = set(coded.held(s.length))
        held = [(coded, i) for i in units]
        if coded.exact >= 0:
            exact = s.pool.groups[coded.exact]
            held += [(exact, i) for i in exact.held(s.length) if i * exact.size // coded.size not in units]
        for g, i in held:
            cell = g.index, int(s.block_tables[g.index].ids[i])
            filled[cell] = max(filled.get(cell, 0), min(g.size, s.length - i * g.size))
    return sum(filled.values())


def f16_nbytes(pool: KVPool, length: int) -> int:
    """Bytes of a float16 cache of `length` tokens, from arrays that the backend allocates."""
    half = (Tier(codec("f16"), codec("f16")),) * len(pool.model.layers)
    total = 0
    for g in make_groups(pool.model, half, pool.block_size):
        kvs = [layer_kv(pool.ops, pool.model, i, half[i], pool.block_size) for i in g.layers]
        total += len(list(g.held(length))) * sum(kv.k.block_nbytes + kv.v.block_nbytes for kv in kvs)
    return total


def _nbytes(blocks: list[set[int]], block_nbytes: list[int]) -> int:
    return sum(len(b) * n for b, n in zip(blocks, block_nbytes, strict=True))
