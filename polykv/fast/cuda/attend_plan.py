"""Which part of attention each block of the grid does, and which partial results belong to a query.

An item is a range of cells of one segment, for up to four or eight queries that share a K/V head; the grid is all items
times all K/V heads. Segments are cut such that items fill the multiprocessors once: a long one over all of them, many
short ones each by itself. `attend_merge` then joins the partial results of a query, whichever segments they are of.

    items    int32 [N, 8]   first entry of the block table, first cell, cells, position of the first cell,
                            first row (an index of `rows`), rows, first head of the group, heads
    ptr      int32 [R H + 1], parts int32: for query r H + h the rows of the partial results
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from polykv.types import I32, Segments

# Queries of a set (kernels/attend_scores.cuh).
QUERIES = 4
TABLE, FIRST, CELLS, START, ROW, ROWS, HEAD, HEADS = range(8)
ENTRIES = 8
# Cells of a long segment. With 32,768 of them blocks of 4 and of 16 warps take the same time on an H200, with 262,144
# those of 16 take 3 to 5 % less.
LONG = 65_536


@dataclass(frozen=True, eq=False)
class Plan:
    """See above; queries: rows of partial results that an item has for a K/V head."""

    items: I32
    ptr: I32
    parts: I32
    queries: int


def sets_of(segments: Segments, group: int) -> int:
    """Sets of four queries that items have: two where that halves the items of any segment."""
    rows = np.diff(segments.row_ptr)
    return 2 if rows.size and int(rows.max()) * group > QUERIES else 1


def long(segments: Segments) -> bool:
    """Whether all segments that rows see are long enough for blocks of many warps."""
    seen = segments.length[np.diff(segments.row_ptr) > 0]
    return bool(seen.size and int(seen.min()) >= LONG)


def plan(
    segments: Segments, heads: int, n_kv: int, window: int, *, sets: int, turn: int, slots: int, teams: int
) -> Plan:
    """Items of a step.

    turn: cells that a warp takes at a time; teams: warps of a block that take different ones; slots: blocks that the
    device runs at once.
    """
    group, queries = heads // n_kv, QUERIES * sets
    ranges = [_seen(segments, s, window, turn) for s in range(len(segments))]
    tiles = [list(_tiles(segments, s, group, queries)) for s in range(len(segments))]
    turns = sum(-(-(last - first) // turn) * len(t) for (first, last), t in zip(ranges, tiles, strict=True))
    # Not one block more than run at once, or the last ones double the time; and each team of a block gets as many turns
    # as the others.
    each = max(1, -(-turns // (max(1, slots // n_kv) * teams))) * teams * turn
    items: list[tuple[int, ...]] = []
    for s, (first, last) in enumerate(ranges):
        table, start = int(segments.block_ptr[s]), int(segments.start[s])
        for tile in tiles[s]:
            items += [(table, at, min(each, last - at), start + at, *tile) for at in range(first, last, each)]
    found = np.array(items, np.int32).reshape(len(items), ENTRIES)
    return Plan(found, *_parts(found, segments, heads, n_kv, queries), queries)


def _seen(segments: Segments, s: int, window: int, turn: int) -> tuple[int, int]:
    """First cell of a segment that any of its rows sees, rounded down to a turn, and one past the last."""
    positions = segments.positions[segments.rows[segments.row_ptr[s] : segments.row_ptr[s + 1]]]
    start, length = int(segments.start[s]), int(segments.length[s])
    if positions.size == 0:
        return 0, 0
    first = max(0, int(positions.min()) - window + 1 - start) // turn * turn if window > 0 else 0
    return min(first, length), max(min(first, length), min(length, int(positions.max()) + 1 - start))


def _tiles(segments: Segments, s: int, group: int, queries: int) -> Iterator[tuple[int, int, int, int]]:
    """The rows and heads of a segment's items: first row, rows, first head, heads."""
    heads = min(group, queries)
    rows, begin, end = queries // heads, int(segments.row_ptr[s]), int(segments.row_ptr[s + 1])
    for head in range(0, group, heads):
        for row in range(begin, end, rows):
            yield row, min(rows, end - row), head, min(heads, group - head)


def _parts(items: I32, segments: Segments, heads: int, n_kv: int, queries: int) -> tuple[I32, I32]:
    """ptr and parts: the queries of every item and K/V head, sorted by query; of a query in the order of items."""
    group, of, at = heads // n_kv, [], []
    kv = np.arange(n_kv)[:, None, None]
    for i, item in enumerate(items):
        rows = segments.rows[item[ROW] : item[ROW] + item[ROWS]][None, :, None]
        head = np.arange(item[HEADS])[None, None, :]
        of.append((rows * heads + kv * group + item[HEAD] + head).ravel())
        local = np.arange(item[ROWS])[None, :, None] * item[HEADS] + head
        at.append(((i * n_kv + kv) * queries + local).ravel())
    query = np.concatenate(of) if of else np.zeros(0, np.int64)
    order = np.argsort(query, kind="stable")
    ptr = np.searchsorted(query[order], np.arange(len(segments.positions) * heads + 1))
    parts = np.concatenate(at)[order] if at else np.zeros(0, np.int64)
    return ptr.astype(np.int32), parts.astype(np.int32)
