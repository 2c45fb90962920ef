"""The block table of one sequence in one cache group: which block holds which cells.

Block i holds positions [i B, (i + 1) B). A table owns one reference to every block in it; entries before `first`, but
for the `lead` ones at the start, are not read any more, were given back, and are -1.
"""

from __future__ import annotations

import numpy as np

from polykv.cache.blocks import BlockManager
from polykv.types import I32


class BlockTable:
    """Growable int32 array of block ids; entries from `lead` to `first` were dropped and are -1.

    since: position before which blocks may lack cells, which came from a file with smaller blocks (regroup.py): they
    are not read by what goes on, but must not be gone back to, or found.
    """

    __slots__ = ("_ids", "first", "lead", "n", "since")

    def __init__(self, ids: I32 | None = None, first: int = 0, lead: int = 0, since: int = 0) -> None:
        self._ids: I32 = np.full(8, -1, np.int32) if ids is None else ids
        self.n = 0 if ids is None else len(ids)
        self.first = first
        self.lead = lead
        self.since = since

    @property
    def ids(self) -> I32:
        """All entries, a view [n]."""
        return self._ids[: self.n]

    def append(self, block: int) -> None:
        if self.n == len(self._ids):
            bigger = np.full(max(8, 2 * self.n), -1, np.int32)
            bigger[: self.n] = self.ids
            self._ids = bigger
        self._ids[self.n] = block
        self.n += 1

    def held(self) -> list[int]:
        """Blocks that the table holds, in position order."""
        held: list[int] = self._ids[self.first : self.n].tolist()
        return self._ids[: min(self.lead, self.first)].tolist() + held if self.lead else held

    def copy(self) -> BlockTable:
        """A table of the same blocks; the references are the caller's affair."""
        return BlockTable(self.ids.copy(), self.first, self.lead, self.since)

    def cut(self, n: int, manager: BlockManager) -> None:
        """Shorten the table to n blocks and give the others back."""
        # Deepest first: the end of a prefix is the least useful part of it.
        for b in reversed(self.ids[n:].tolist()):
            if b >= 0:
                manager.release(b)
        self.n = min(self.n, n)
        self.since = self.since if self.n else 0
        self.first = min(self.first, n)

    def drop(self, first: int, manager: BlockManager) -> None:
        """Give back the blocks before number `first`, but not the lead: a sequence that goes on does not read them."""
        if first <= self.first:
            return
        begin = max(self.first, self.lead)
        for b in self.ids[begin:first].tolist():
            manager.release(b, cold=True)
            manager.counters["dropped"] += 1
        self.ids[begin:first] = -1
        self.first = first

    def take_back(self, first: int, blocks: list[int]) -> None:
        """The table was cut to positions that read from block `first` on: `blocks` are those that it had dropped."""
        self.ids[self.first - len(blocks) : self.first] = blocks
        self.first = min(self.first, first)
