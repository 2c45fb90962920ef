"""Whether requests fit into the pool together: blocks that each may still take, summed per cache group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from polykv.cache.pool import CacheGroup, KVPool
from polykv.engine_request import Request


class Releasable(Protocol):
    """Something that holds blocks it can do without."""

    def release(self) -> bool:
        """Give them back; True when there were any."""
        ...


def fits(pool: KVPool, requests: Iterable[Request], chunk: int) -> bool:
    """True when all requests can grow to their limits with what the pool has left. chunk: largest prefill step."""
    requests = list(requests)
    return all(
        sum(blocks_to_come(pool, group, r, chunk) for r in requests)
        <= pool.max_blocks - pool.managers[group.index].n_used
        for group in pool.groups
    )


def blocks_to_come(pool: KVPool, group: CacheGroup, request: Request, chunk: int) -> int:
    """Most blocks of a group that the request may take beyond those it holds.

    A sliding group holds its window and the chunk that is being written, each of which may begin inside a block.
    """
    size = pool.block_size
    total = -(-request.limit // size)
    if group.window:
        total = min(total, -(-(group.window + chunk) // size) + 1)
    if request.sequence is None:
        return total
    held = len(request.sequence.block_tables[group.index].held())
    # A last block that is shared and not full is copied before it is written: one block more than the table grows.
    partial = request.sequence.length % size != 0
    return max(0, total - held) + partial
