"""What the rows of one step read, as segments: common runs of blocks once for all their sequences (cascade).

The tables of the sequences are compared by physical block id. From the first block on, the set of sequences walks
together as long as their tables agree; that run is one segment with the rows of all of them. Where tables part, the
set is split and each part goes on alone, so several levels of sharing (one document, two chapters, many questions)
give one segment per level. Sequences enter the walk where their window begins.

Exact for any cut because attention over disjoint keys can be merged (Hydragen, arXiv 2402.05099, and docs/POOL.md).
Equal to the bit because runs are cut at multiples of UNIT positions only (docs/ARCHITECTURE.md): where tables part
inside a unit, each part lists all blocks of that unit, also those that are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from math import lcm
from typing import Protocol

import numpy as np

from polykv.cache.block_table import BlockTable
from polykv.cache.group import CacheGroup, Stage, exact_from
from polykv.cache.pool import KVPool
from polykv.types import I32, UNIT, Segment, Segments


@dataclass(frozen=True, eq=False)
class _Reader:
    """One sequence of the step in one group: blocks [first, end) of its table, seen by `rows`."""

    blocks: I32
    first: int
    end: int
    length: int
    rows: I32


class Tokens(Protocol):
    """What a plan needs of a sequence: how many tokens it has, and its block tables, one for each cache group."""

    @property
    def length(self) -> int: ...

    @property
    def block_tables(self) -> list[BlockTable]: ...


def plan_segments(pool: KVPool, batch: Seq[tuple[Tokens, int]], counts: Counter[str] | None = None) -> list[Segments]:
    """One `Segments` per cache group for the last n_q tokens of every (sequence, n_q), rows numbered in this order.

    Call it after `extend` and before `commit`. Counts what is shared in `counts`, by default `pool.counters` (see
    KVPool).
    """
    counts = pool.counters if counts is None else counts
    busy = [(s, n) for s, n in batch if n]
    starts = np.cumsum([0, *(n for _, n in busy)], dtype=np.int32)
    rows = [np.arange(starts[i], starts[i + 1], dtype=np.int32) for i in range(len(busy))]
    if len(busy) == 1:
        positions = np.arange(busy[0][0].length - busy[0][1], busy[0][0].length, dtype=np.int32)
    else:
        parts = [np.arange(s.length - n, s.length, dtype=np.int32) for s, n in busy]
        positions = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    plans = [_plan_group(counts, g, busy, rows, positions) for g in pool.groups]
    for g in pool.groups:
        if g.stage is Stage.CODED:
            plans[g.index] = replace(plans[g.index], first=g.sink, exact=plans[g.exact])
    return plans


def _plan_group(
    counts: Counter[str], group: CacheGroup, busy: list[tuple[Tokens, int]], rows: list[I32], positions: I32
) -> Segments:
    runs: list[list[_Reader]] = [[], []]
    for (s, n), r in zip(busy, rows, strict=True):
        table = s.block_tables[group.index].ids
        if group.stage is Stage.WHOLE:
            runs[1].append(_Reader(table, group.first_block(s.length - n), len(table), s.length, r))
        else:
            for run, readers in zip(runs, _staged_readers(group, table, s.length - n, r), strict=True):
                run += readers
    if len(runs[1]) == 1 and not runs[0]:
        return _single(group, counts, runs[1][0], positions)
    items: list[Segment] = []
    # Blocks from cut to cut: cuts are borders of blocks and of units.
    step = lcm(group.size, UNIT) // group.size
    for readers in filter(None, runs):
        start = min(r.first for r in readers) // step * step
        _walk(_Walk(counts, group.size, step, items), readers, start, max(r.end for r in readers))
    return Segments.of(items, positions)


def _staged_readers(group: CacheGroup, table: I32, start: int, rows: I32) -> tuple[list[_Reader], list[_Reader]]:
    """Readers of sinks and of other cells, for rows at positions start, start + 1, ... of one sequence.

    Which cells are coded for a row and which exact depends on its position alone, in steps of whole units.
    """
    leads, others = [], []
    borders = np.array([exact_from(start + i, group.recent) for i in range(len(rows))])
    for border in np.unique(borders).tolist():
        here = rows[borders == border]
        last = start + int(here[-1] - rows[0])
        if group.stage is Stage.CODED:
            first = group.first_block(start + int(here[0] - rows[0]))
            if first * UNIT < border:
                others.append(_Reader(table, first, border // UNIT, border, here))
            continue
        others.append(_Reader(table, border // group.size, last // group.size + 1, last + 1, here))
        if border and group.lead:
            leads.append(_Reader(table, 0, group.lead, group.sink, here))
    return leads, others


def _single(group: CacheGroup, counts: Counter[str], r: _Reader, positions: I32) -> Segments:
    """The plan of one sequence alone; every decode step of a single user comes here, so it makes few arrays."""
    n = r.end - r.first
    start = r.first * group.size
    _count(counts, r.length - start, r.rows, 1)
    return Segments(
        r.blocks[r.first : r.end].copy(),
        np.array((0, n), np.int32),
        np.array((start,), np.int32),
        np.array((r.length - start,), np.int32),
        r.rows,
        np.array((0, len(r.rows)), np.int32),
        positions,
    )


@dataclass(frozen=True, eq=False)
class _Walk:
    """What stays the same in the walk over the tables of one group: cells of a block, blocks from cut to cut, and the
    segments found so far, ascending for every row."""

    counts: Counter[str]
    size: int
    step: int
    items: list[Segment]


def _walk(walk: _Walk, readers: list[_Reader], at: int, stop: int) -> None:
    """Append the segments that cover blocks [at, stop) of the readers' tables."""
    if len(readers) == 1:
        stop = min(stop, readers[0].end)
        if max(at, readers[0].first) < stop:
            walk.items.append(_segment(walk, readers, at, stop))
        return
    step = walk.step
    while at < stop:
        active = [r for r in readers if r.first < at + step and at < r.end]
        # Up to here the set of readers stays the same.
        later = [r.first // step * step for r in readers if at + step <= r.first < stop]
        until = min([stop, *later])
        if not active:
            at = until
            continue
        if later:
            _walk(walk, active, at, until)
            at = until
            continue
        parts = _parts(active, at, step)
        run = _common_run(active, at, stop, step) if len(parts) == 1 else 0
        if run == 0:
            # Tables that agree where all have blocks, but not before, are a freak: they go on one by one.
            for part in parts if len(parts) > 1 else [[r] for r in active]:
                _walk(walk, part, at, stop)
            return
        walk.items.append(_segment(walk, active, at, at + run))
        at += run


def _parts(readers: list[_Reader], at: int, step: int) -> list[list[_Reader]]:
    """Readers by their blocks between two cuts, as far as all of them still have those blocks."""
    begin = max(at, *(r.first for r in readers))
    parts: dict[bytes, list[_Reader]] = {}
    for r in readers:
        parts.setdefault(r.blocks[begin : min(at + step, r.end)].tobytes(), []).append(r)
    return list(parts.values())


def _common_run(readers: list[_Reader], at: int, stop: int, step: int) -> int:
    """Number of blocks from `at` to the last cut before which all tables agree; 0 if there is none."""
    end = min(stop, *(r.end for r in readers))
    lead = min(readers, key=lambda r: r.first)
    whole = lead.blocks[at:end].tobytes()
    # Agents of one document agree in thousands of blocks, at every step: bytes are compared in no time.
    if all(r.first <= at and r.blocks[at:end].tobytes() == whole for r in readers):
        run = end - at
    else:
        same = np.ones(end - at, np.bool_)
        for r in readers:
            begin = max(at, r.first)
            same[begin - at :] &= r.blocks[begin:end] == lead.blocks[begin:end]
        run = end - at if same.all() else int(same.argmin())
    # All end there: nobody's cells are cut.
    if at + run == max(r.end for r in readers):
        return run
    return run // step * step


def _segment(walk: _Walk, readers: list[_Reader], at: int, end: int) -> Segment:
    """Blocks [at, end) of the reader that has most of them, for the rows of all."""
    size, lead = walk.size, min(readers, key=lambda r: r.first)
    at = max(at, lead.first)
    length = min(end * size, max(r.length for r in readers)) - at * size
    rows = lead.rows if len(readers) == 1 else np.concatenate([r.rows for r in readers])
    _count(walk.counts, length, rows, len(readers))
    return Segment(lead.blocks[at:end], at * size, length, rows)


def _count(c: Counter[str], cells: int, rows: I32, readers: int) -> None:
    c["segments"] += 1
    c["cells"] += cells
    if readers > 1:
        c["shared_segments"] += 1
        c["shared_cells"] += cells
        c["shared_rows"] += len(rows)
