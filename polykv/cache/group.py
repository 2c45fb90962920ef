"""Cache groups: layers that share block ids, and which blocks of a sequence each group holds.

Layers with the same attention window and the same treatment of new cells form a group. Plain tiers code a cell when it
is written: one group. Tiers with `+c`, `sink=` or `recent=` keep new cells exact and code them in whole units of
UNIT positions (docs/CENTERED.md): two groups, one of coded units, one of exact cells. What is held follows from the
length of a sequence alone, so it does not depend on how the sequence came about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from polykv.config import ModelConfig, Tier
from polykv.errors import ConfigError
from polykv.types import UNIT


class Stage(Enum):
    """What the cells of a group are."""

    WHOLE = "all cells, coded as they are written"
    CODED = "cells of complete units, coded"
    EXACT = "sinks, and cells of units that are recent or not complete: K as floats, V in 8 bits"


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share block ids. window: keys a query sees including itself, 0 = all of them.

    size: cells of a block. sink, recent: those of the tier (`Tier`). exact: index of the group with the exact cells of
    a CODED one, else -1.
    """

    index: int
    window: int
    layers: tuple[int, ...]
    size: int = 8
    stage: Stage = Stage.WHOLE
    sink: int = 0
    recent: int = 0
    exact: int = -1

    def first_cell(self, position: int) -> int:
        """Position of the oldest cell, sinks apart, that a query at `position` or later reads here.

        >>> CacheGroup(1, 4, ()).first_cell(10), CacheGroup(0, 0, ()).first_cell(10)
        (7, 0)
        >>> CacheGroup(1, 0, (), stage=Stage.EXACT).first_cell(130)
        128
        """
        if self.stage is Stage.EXACT:
            return exact_from(position, self.recent)
        return max(0, position - self.window + 1) if self.window else 0

    def first_block(self, length: int) -> int:
        """Number of the block with that cell, for the token after `length` others."""
        return self.first_cell(length) // self.size

    def n_blocks(self, length: int) -> int:
        """Blocks in the table of a sequence of `length` tokens, those included that were let go of."""
        return length // self.size if self.stage is Stage.CODED else -(-length // self.size)

    def longest(self, n: int) -> int:
        """Most tokens of a sequence whose table has n blocks."""
        return (n + 1) * self.size - 1 if self.stage is Stage.CODED else n * self.size

    @property
    def lead(self) -> int:
        """Blocks at the start of a table that are never let go of: those of the sinks."""
        return -(-self.sink // self.size) if self.stage is Stage.EXACT else 0

    def held(self, length: int) -> Iterator[int]:
        """Numbers of the blocks that a sequence of `length` tokens holds when a step is done, ascending."""
        n, first = self.n_blocks(length), self.first_block(length)
        return chain(range(min(self.lead, first, n)), range(first, n))


def exact_from(position: int, recent: int) -> int:
    """First position of the exact cells before a query: the start of the unit that holds the oldest of its `recent`
    last ones, itself included.

    >>> exact_from(63, 0), exact_from(64, 0), exact_from(64, 64), exact_from(127, 64)
    (0, 64, 0, 64)
    """
    return max(0, position + 1 - max(1, recent)) // UNIT * UNIT


def make_groups(model: ModelConfig, tiers: tuple[Tier, ...], block_size: int) -> tuple[CacheGroup, ...]:
    """Groups by window, full attention first, then by ascending window; plain tiers before others.

    Raises ConfigError when units are not whole blocks and a tier needs them to be.
    """
    keys = [(layer.window, t.staged, t.sink, t.recent) for layer, t in zip(model.layers, tiers, strict=True)]
    groups: list[CacheGroup] = []
    for key in sorted(set(keys)):
        window, staged, sink, recent = key
        layers, g = tuple(i for i, k in enumerate(keys) if k == key), len(groups)
        if not staged:
            groups.append(CacheGroup(g, window, layers, block_size))
            continue
        if UNIT % block_size:
            raise ConfigError(
                f"blocks of {block_size} do not divide units of {UNIT}, in which {tiers[layers[0]]} codes"
            )
        groups.append(CacheGroup(g, window, layers, UNIT, Stage.CODED, sink, recent, g + 1))
        groups.append(CacheGroup(g + 1, window, layers, block_size, Stage.EXACT, sink, recent))
    return tuple(groups)
