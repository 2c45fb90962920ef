"""The block table of one sequence in one cache group: which block holds which cells.

Block i holds positions [i B, (i + 1) B). A table owns one reference to every block in it; the entries before `first`
slid out of the window of the group, were given back, and are -1.
"""

from __future__ import annotations

import numpy as np

from polykv.cache.blocks import BlockManager
from polykv.types import I32


class BlockTable:
    """Growable int32 array of block ids; entries before `first` were dropped and are -1."""

    __slots__ = ("_ids", "first", "n")

    def __init__(self, ids: I32 | None = None, first: int = 0) -> None:
        self._ids: I32 = np.full(8, -1, np.int32) if ids is None else ids
        self.n = 0 if ids is None else len(ids)
        self.first = first

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
        return held

    def copy(self) -> BlockTable:
        """A table of the same blocks; the references are the caller's affair."""
        return BlockTable(self.ids.copy(), self.first)

    def cut(self, n: int, manager: BlockManager) -> None:
        """Shorten the table to n blocks and give the others back."""
        # Deepest first: the end of a prefix is the least useful part of it.
        for b in reversed(self.ids[max(n, self.first) :].tolist()):
            manager.release(b)
        self.n = min(self.n, n)
        self.first = min(self.first, n)

    def drop(self, first: int, manager: BlockManager) -> None:
        """Give back the blocks before number `first`, which slid out of the window of a sequence that goes on."""
        if first <= self.first:
            return
        for b in self.ids[self.first : first].tolist():
            manager.release(b, cold=True)
            manager.counters["dropped"] += 1
        self.ids[self.first : first] = -1
        self.first = first

    def take_back(self, blocks: list[int]) -> None:
        """Put blocks in front of the first one that is held: the table shrank to positions that see them again."""
        self.first -= len(blocks)
        self.ids[self.first : self.first + len(blocks)] = blocks
