"""Whether requests fit into the pool together: blocks that each may still take, summed per cache group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from polykv.cache.group import CacheGroup, Stage
from polykv.cache.pool import KVPool
from polykv.engine_request import Request
from polykv.types import UNIT


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
        <= pool.max_blocks(group.index) - pool.managers[group.index].n_used
        for group in pool.groups
    )


def blocks_to_come(pool: KVPool, group: CacheGroup, request: Request, chunk: int) -> int:
    """Most blocks of a group that the request may take beyond those it holds.

    A sliding group holds its window and the chunk that is being written, each of which may begin inside a block; one of
    exact cells the units that are recent or not complete, in place of the window, and the sinks.
    """
    size, view = group.size, group.window
    total = group.n_blocks(request.limit)
    if group.stage is Stage.EXACT:
        view = UNIT + group.recent
    if view:
        total = min(total, -(-(view + chunk) // size) + 1 + group.lead)
    if request.sequence is None:
        return total
    held = len(request.sequence.block_tables[group.index].held())
    # A last block that is shared and not full is copied before it is written: one block more than the table grows.
    partial = request.sequence.length % size != 0 and group.stage is not Stage.CODED
    return max(0, total - held) + partial
