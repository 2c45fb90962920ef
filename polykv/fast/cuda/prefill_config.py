"""How the attention of many rows is compiled for a head_dim, and the shared memory that it takes.

A warp has 32 queries, with the sums of a slice of the values: all 255 registers of a thread. So a multiprocessor runs
eight warps; as two blocks, where memory allows it, one of which multiplies while the other computes its softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.fast.cuda.layout import slices_of
from polykv.fast.cuda.source import Define

# Of a head of so many slices: teams of warps, cells of a turn, blocks of a multiprocessor; the best first.
CHOICES = {
    1: ((4, 64, 2), (4, 32, 2), (2, 32, 2), (2, 32, 1)),
    2: ((2, 64, 2), (4, 64, 1), (2, 32, 1), (1, 32, 1)),
    4: ((2, 64, 1), (2, 32, 1), (1, 32, 1)),
}


@dataclass(frozen=True)
class Config:
    """width, slices: of a head; groups: teams of warps, 32 queries each; cells: of a turn; ctas: blocks that should fit
    a multiprocessor; softcap: whether scores are capped."""

    width: int
    slices: int
    groups: int
    cells: int
    ctas: int
    softcap: bool

    @property
    def dims(self) -> int:
        """Values of a head as they are stored."""
        return self.width * self.slices

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return 32 * self.groups

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.groups * self.slices

    @property
    def shared(self) -> int:
        """Bytes of shared memory: queries, a turn of K and of V, what warps of a team exchange, units and positions."""
        exchange = 2 * self.queries * self.cells + 4 * self.slices * self.queries if self.slices > 1 else 0
        return 2 * self.dims * (self.queries + 2 * self.cells) + exchange + 8 * self.queries

    def defines(self) -> dict[str, Define]:
        """What kernels/prefill.cu is specialised by."""
        found: dict[str, Define] = {
            "PRE_WIDTH": self.width,
            "PRE_SLICES": self.slices,
            "PRE_GROUPS": self.groups,
            "PRE_CELLS": self.cells,
            "PRE_CTAS": self.ctas,
        }
        return found | ({"PRE_SOFTCAP": 1} if self.softcap else {})


def config(head_dim: int, *, softcap: bool, limit: int) -> Config:
    """The best that fits; limit: bytes of shared memory of a multiprocessor."""
    width, slices = slices_of(head_dim)
    made = [Config(width, slices, *choice, softcap) for choice in CHOICES[slices]]
    # A kilobyte of every block is the system's.
    fits = [c for c in made if c.ctas * (c.shared + 1024) <= limit]
    return fits[0] if fits else made[-1]
