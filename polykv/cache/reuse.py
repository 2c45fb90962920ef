"""The longest prefix of a prompt that the cache still holds, for all cache groups at once.

A full-attention group needs every block from the start. The others need the blocks that the next query reads, so blocks
that slid out of a window, and exact cells that were coded since, may be gone without harm.
"""

from __future__ import annotations

from collections.abc import Iterator

from polykv.cache.blocks import Prefix
from polykv.cache.group import CacheGroup, Stage
from polykv.cache.pool import KVPool


def named_by(chain: list[Prefix], group: CacheGroup, size: int, block: int) -> Prefix:
    """The prefix under which a full block is published: that of its last cell. chain: of blocks of `size` cells."""
    return chain[(block + 1) * group.size // size - 1]


def find_prefix(pool: KVPool, tokens: list[int]) -> list[Prefix]:
    """Prefixes of the leading blocks of `tokens` that can be reused together; nothing is retained."""
    size = pool.block_size
    full = [g for g in pool.groups if not g.window and g.stage is not Stage.EXACT]
    chain: list[Prefix] = []
    for i in range(len(tokens) // size):
        prefix = Prefix(chain[-1] if chain else None, tuple(tokens[i * size : (i + 1) * size]), pool.seed)
        ending = [pool.managers[g.index] for g in full if (i + 1) * size % g.size == 0]
        held = [m.find(prefix) for m in ending]
        if None in held:
            break
        # Continue with the node that the cache holds: later comparisons then end at once.
        known = ending[0].prefix(held[0]) if held and held[0] is not None else None
        chain.append(known or prefix)

    n = len(chain)
    while n:
        # Shorter lengths read earlier blocks, so all lengths that have the first hole behind them read it too.
        holes = [_before(g, i, size) for g in pool.groups if g not in full for i in _missing(pool, chain, g, n * size)]
        if not holes:
            break
        n = min(holes)
    return chain[:n]


def _missing(pool: KVPool, chain: list[Prefix], group: CacheGroup, length: int) -> Iterator[int]:
    """Blocks of a group that a prefix of `length` tokens needs and the cache does not hold."""
    manager = pool.managers[group.index]
    for i in group.held(length):
        if manager.find(named_by(chain, group, pool.block_size, i)) is None:
            yield i


def _before(group: CacheGroup, block: int, size: int) -> int:
    """The most blocks of `size` tokens with which a prefix does not need this block."""
    return ((block + 1) * group.size - 1) // size
