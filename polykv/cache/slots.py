"""Where the cells of a step go, per cache group, and which units it completes."""

from __future__ import annotations

import numpy as np

from polykv.cache.block_table import BlockTable
from polykv.cache.group import CacheGroup, Stage
from polykv.types import I32, UNIT, Seals, Slots


def step_slots(groups: tuple[CacheGroup, ...], tables: list[BlockTable], start: int, end: int) -> list[Slots]:
    """Slots of positions start..end-1, for which the tables have blocks already. A CODED group gets the cells of its
    exact group and the units that are complete at `end`."""
    found: list[Slots] = []
    if end - start == 1 and not any(group.stage is Stage.CODED for group in groups):
        # A step of many agents comes here for each of them.
        for group, table in zip(groups, tables, strict=True):
            block, offset = divmod(start, group.size)
            found.append(Slots(table.ids[block : block + 1].copy(), np.array((offset,), np.int32)))
        return found
    positions = np.arange(start, end, dtype=np.int32)
    for group in groups:
        written = groups[group.exact] if group.stage is Stage.CODED else group
        index, offsets = np.divmod(positions, np.int32(written.size))
        cells = tables[written.index].ids[index]
        seals = _seals(group, written, tables, start, end) if group.stage is Stage.CODED else None
        found.append(Slots(cells, offsets, seals))
    return found


def _seals(group: CacheGroup, exact: CacheGroup, tables: list[BlockTable], start: int, end: int) -> Seals:
    units: I32 = np.arange(start // UNIT, end // UNIT, dtype=np.int32)
    per = UNIT // exact.size
    blocks = units[:, None] * np.int32(per) + np.arange(per, dtype=np.int32)
    sinks = np.clip(group.sink - units * np.int32(UNIT), 0, UNIT).astype(np.int32)
    return Seals(tables[exact.index].ids[blocks], tables[group.index].ids[units], sinks)
