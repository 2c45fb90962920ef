"""The step that probably comes next, begun before the host knows the tokens of the one before.

A device works while the host does something else, and a step of one token is over sooner than the host has prepared the
next one. But what the host prepares does not depend on the token: where its K and V go, which cells its row reads. So
while a step runs, the next one is begun behind it, with the tokens as they will lie on the device. When the caller then
asks for just that step, only its tokens are waited for; otherwise what was begun is forgotten. It has written K and V
of cells that no sequence has yet, in blocks that are its sequences' own or free, and whoever gets these cells writes
them later: no result changes (docs/ARCHITECTURE.md).

Nothing is begun where the step would do more than make sequences longer: where a block would have to be copied or
recycled, or where exact cells become codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from polykv.cache.block_table import BlockTable
from polykv.cache.pool import KVPool
from polykv.cache.segments import plan_segments
from polykv.cache.sequence import Coming, Sequence
from polykv.model.choice import Choice
from polykv.model.transformer import Transformer
from polykv.types import F32, Slots


@dataclass(eq=False)
class Begun:
    """A choice that was begun for a step. ids: its result [R], of the backend. found: what it fetches, ids first.

    Of a step that was begun ahead: sequences, one row each (who lets go of one lets go of its blocks); slots, where it
    writes, per cache group; counts, for the pool's counters; tokens of its rows, once they are known; changes, of the
    pool by then (`KVPool.changes`).
    """

    choice: Choice[Any]
    ids: Any
    found: list[Callable[[], npt.NDArray[Any]]]
    sequences: list[ref[Sequence]] = field(default_factory=list)
    slots: list[Slots] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    tokens: list[int] = field(default_factory=list)
    changes: int = -1

    def arrives_at(self, pool: KVPool, batch: list[tuple[Sequence, list[int]]], choice: Choice[Any]) -> bool:
        """Whether it is the step of this batch, which has not been extended, and this choice."""
        return (
            self.changes == pool.changes
            and self.choice == choice
            and len(batch) == len(self.sequences)
            and all(
                s is mine() and ids == [i] for (s, ids), mine, i in zip(batch, self.sequences, self.tokens, strict=True)
            )
        )

    def writes_to(self, slots: list[Slots]) -> bool:
        """Whether these are its slots."""
        return all(
            np.array_equal(a.blocks, b.blocks) and np.array_equal(a.offsets, b.offsets)
            for a, b in zip(self.slots, slots, strict=True)
        )


def begin(transformer: Transformer, choice: Choice[Any], h: F32) -> Begun:
    """Begin a choice for hidden rows h."""
    found = choice.begin(h)
    return Begun(choice, found[0], [transformer.ops.begin_fetch(x) for x in found])


@dataclass(frozen=True, eq=False)
class _Longer:
    """A sequence as it will be with its next token."""

    length: int
    block_tables: list[BlockTable]


def begin_next(
    pool: KVPool, transformer: Transformer, sequences: list[Sequence], ids: Any, choice: Choice[Any]
) -> Begun | None:
    """Begin the step with ids [R] of the backend, one for each sequence; None where it would change more than lengths.

    Call it between `extend` and `commit` of the step before.
    """
    coming, cells, longer = Coming(len(pool.groups)), list[list[Slots]](), list[tuple[_Longer, int]]()
    for s in sequences:
        found = s.next_token(coming)
        if found is None:
            return None
        cells.append(found[0])
        longer.append((_Longer(s.length + 1, found[1]), 1))
    if not coming.certain:
        return None
    slots, counts = by_group(cells), Counter[str]()
    positions = np.array([s.length for s in sequences], np.int32)
    segments = plan_segments(pool, longer, counts)
    h = transformer.hidden(ids, positions, slots, segments, np.arange(len(sequences), dtype=np.int32))
    begun = begin(transformer, choice, h)
    begun.sequences, begun.slots, begun.counts = list(map(ref, sequences)), slots, counts
    return begun


def by_group(per_sequence: list[list[Slots]]) -> list[Slots]:
    """Slots of all rows of a step, per cache group."""
    if len(per_sequence) == 1:
        return per_sequence[0]
    return [Slots.join(list(g)) for g in zip(*per_sequence, strict=True)]
