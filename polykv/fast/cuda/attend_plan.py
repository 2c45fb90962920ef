"""Which part of attention each block of the grid does, and which partial results belong to a query.

An item is a range of cells of one segment, for up to four or eight queries that share a K/V head; the grid is all items
times all K/V heads. Segments are cut such that items fill the multiprocessors once: a long one over all of them, many
short ones each by itself. `attend_merge` then joins the partial results of a query, whichever segments they are of.

    items    int32 [N, 9]   first entry of the block table, first cell, cells, position of the first cell, cells that no
                            row of the step writes, first row (an index of `rows`), rows, first head of the group, heads
    ptr      int32 [R H + 1], parts int32: for query r H + h the rows of the partial results
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from polykv.types import I32, Segments

# Queries of a set (kernels/attend_scores.cuh).
QUERIES = 4
TABLE, FIRST, CELLS, START, OLD, ROW, ROWS, HEAD, HEADS = range(9)
ENTRIES = 9
# One bool for each segment.
Which = npt.NDArray[np.bool_]
# Cells of a long segment. With 32,768 of them blocks of 4 and of 16 warps take the same time on an H200, with 262,144
# those of 16 take 3 to 5 % less.
LONG = 65_536


@dataclass(frozen=True, eq=False)
class Plan:
    """See above; queries: rows of partial results that an item has for a K/V head; cut: what stays from step to
    step."""

    items: I32
    queries: int
    cut: Cut

    @property
    def ptr(self) -> I32:
        return self.cut.ptr

    @property
    def parts(self) -> I32:
        return self.cut.parts


def sets_of(segments: Segments, group: int, but: Which | None = None) -> int:
    """Sets of four queries that items have: two where that halves the items of any segment; but: those left out."""
    rows = np.diff(segments.row_ptr)
    rows = rows if but is None else rows[~but]
    return 2 if rows.size and int(rows.max()) * group > QUERIES else 1


@dataclass(frozen=True, eq=False)
class Cut:
    """What of a plan stays while sequences grow within a turn: for every item its segment, first cell and cells, and
    columns ROW to HEADS; ptr and parts."""

    segment: I32
    at: I32
    each: int
    tiles: I32
    ptr: I32
    parts: I32


def long(segments: Segments, but: Which | None = None) -> bool:
    """Whether all segments that rows see are long enough for blocks of many warps; but: those left out."""
    read = np.diff(segments.row_ptr) > 0
    seen = segments.length[read if but is None else read & ~but]
    return bool(seen.size and int(seen.min()) >= LONG)


def plan(
    segments: Segments,
    heads: int,
    n_kv: int,
    window: int,
    *,
    sets: int,
    turn: int,
    slots: int,
    teams: int,
    only: Which | None = None,
) -> Plan:
    """Items of a step.

    turn: cells that a warp takes at a time; teams: warps of a block that take different ones; slots: blocks that the
    device runs at once; only: segments that have items, if not all.
    """
    lowest, highest = _positions(segments)
    first, last = _seen(segments, lowest, highest, window, turn)
    turns = -(-(last - first) // turn)
    if only is not None:
        turns *= only
    rows = segments.rows.tobytes(), segments.row_ptr.tobytes(), len(segments.positions)
    made = _cut(first.tobytes(), turns.tobytes(), rows, heads, n_kv, sets, turn, max(1, slots // n_kv) * teams, teams)
    items = np.empty((len(made.at), ENTRIES), np.int32)
    items[:, TABLE] = segments.block_ptr[made.segment]
    items[:, FIRST] = made.at
    items[:, CELLS] = np.minimum(made.each, last[made.segment] - made.at)
    items[:, START] = segments.start[made.segment] + made.at
    # Rows write cells of their own positions, and read what they write.
    items[:, OLD] = np.clip(lowest[made.segment] - items[:, START], 0, items[:, CELLS])
    items[:, ROW:] = made.tiles
    return Plan(items, QUERIES * sets, made)


def _positions(segments: Segments) -> tuple[I32, I32]:
    """For every segment the lowest and the highest position of its rows; 0 and -1 where there are none."""
    n = len(segments)
    if n == len(segments.positions) == len(segments.rows) == 1:
        # One sequence that generates: the host is what such a step waits for.
        return segments.positions, segments.positions
    lowest, highest = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    read = np.flatnonzero(np.diff(segments.row_ptr))
    if read.size:
        positions, starts = segments.positions[segments.rows], segments.row_ptr[read]
        lowest[read] = np.minimum.reduceat(positions, starts)
        highest[read] = np.maximum.reduceat(positions, starts)
    return lowest, highest


def _seen(segments: Segments, lowest: I32, highest: I32, window: int, turn: int) -> tuple[I32, I32]:
    """For every segment the first cell that any of its rows sees, rounded down to a turn, and one past the last."""
    n, length, start = len(segments), segments.length, segments.start
    if n == 1 and window == 0:
        seen = int(highest[0]) + 1 - int(start[0])
        return np.zeros(1, np.int32), np.array([min(max(seen, 0), int(length[0]))], np.int32)
    last = np.clip(highest + 1 - start, 0, length)
    if window == 0:
        return np.zeros(n, np.int32), last
    return np.minimum(np.maximum(lowest - window + 1 - start, 0) // turn * turn, last), last


# Layers of several steps ask for the same: a memo of a pure function of its arguments.
@lru_cache(maxsize=64)
def _cut(
    first: bytes,
    turns: bytes,
    rows: tuple[bytes, bytes, int],
    heads: int,
    n_kv: int,
    sets: int,
    turn: int,
    at_once: int,
    teams: int,
) -> Cut:
    """Items of segments that are so many turns long from `first` on. rows: those of the segments, their ends, and how
    many the step has; at_once: items that the device runs at once, times teams."""
    begin, count = np.frombuffer(first, np.int32), np.frombuffer(turns, np.int32)
    of_rows, row_ptr, n_rows = np.frombuffer(rows[0], np.int32), np.frombuffer(rows[1], np.int32), rows[2]
    tiles = [list(_tiles(row_ptr, s, heads // n_kv, QUERIES * sets)) for s in range(len(count))]
    work = sum(int(n) * len(t) for n, t in zip(count, tiles, strict=True))
    # Not one block more than run at once, or the last ones double the time; and each team of a block gets as many turns
    # as the others.
    each = max(1, -(-work // at_once)) * teams * turn
    found = [
        (s, at, *tile)
        for s, (start, n) in enumerate(zip(begin.tolist(), count.tolist(), strict=True))
        for tile in tiles[s]
        for at in range(start, start + n * turn, each)
    ]
    items = np.array(found, np.int32).reshape(len(found), 2 + ENTRIES - ROW)
    ptr, parts = _parts(items[:, 2:], of_rows, n_rows, heads, n_kv, QUERIES * sets)
    return Cut(items[:, 0], items[:, 1], each, items[:, 2:], ptr, parts)


def _tiles(row_ptr: I32, s: int, group: int, queries: int) -> Iterator[tuple[int, int, int, int]]:
    """The rows and heads of a segment's items: first row, rows, first head, heads."""
    heads = min(group, queries)
    rows, begin, end = queries // heads, int(row_ptr[s]), int(row_ptr[s + 1])
    for head in range(0, group, heads):
        for row in range(begin, end, rows):
            yield row, min(rows, end - row), head, min(heads, group - head)


def _parts(tiles: I32, of_rows: I32, n_rows: int, heads: int, n_kv: int, queries: int) -> tuple[I32, I32]:
    """ptr and parts: the queries of every item and K/V head, sorted by query; of a query in the order of items."""
    group, local = heads // n_kv, np.arange(queries)
    first, rows, head, n_heads = (tiles[:, i, None] for i in range(ENTRIES - ROW))
    # [items, queries]: which row and head of its group is query `local` of an item.
    each = np.maximum(n_heads, 1)
    used = local < rows * n_heads
    at = np.where(used, first + local // each, 0)
    row = of_rows[at] if of_rows.size else at
    kv = np.arange(n_kv)[:, None]
    # [items, n_kv, queries]
    query = row[:, None] * heads + kv * group + (head + local % each)[:, None]
    where = (np.arange(len(tiles))[:, None, None] * n_kv + kv) * queries + local
    chosen = np.broadcast_to(used[:, None], query.shape)
    query, where = query[chosen], where[chosen]
    order = np.argsort(query, kind="stable")
    ptr = np.searchsorted(query[order], np.arange(n_rows * heads + 1))
    return ptr.astype(np.int32), where[order].astype(np.int32)


# Cuts stay from step to step, and their memo keeps them.
@lru_cache(maxsize=64)
def joined(first: Cut, second: Cut, base: int) -> tuple[I32, I32]:
    """ptr and parts of two plans of a step, whose partial results lie one after the other, the second's from `base`
    on."""
    count, more = np.diff(first.ptr), np.diff(second.ptr)
    parts = np.empty(len(first.parts) + len(second.parts), np.int32)
    parts[np.arange(len(first.parts)) + np.repeat(second.ptr[:-1], count)] = first.parts
    parts[np.arange(len(second.parts)) + np.repeat(first.ptr[1:], more)] = second.parts + base
    return first.ptr + second.ptr, parts
