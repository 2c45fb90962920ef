"""Which part of the attention of many rows each block of the grid does.

Segments that the same rows read make a *class*, whose rows are cut into tiles: with all query heads of a K/V head, a
tile fills a block. An item is a tile with all cells that its rows see in the segments of the class, as ranges. It is
cut into several where there would be too few to fill the device, and where the cells do not fit the memory for lifted
codes at once: then attention goes on in rounds. A row that is in one item alone has its result from it; the items of
other rows leave partial results, which are joined.

    items    int32 [N, 8]   first row (an index of `rows` of the segments), rows, first range, ranges, part or -1
    ranges   int32 [M, 8]   first entry of the segment's blocks, first cell, one past the last, position of cell 0, and
                            the cells that all rows see: the first and one past the last

All of it is arrays over tiles, ranges or items: no loop counts rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polykv.types import I32, Segments

I64 = npt.NDArray[np.int64]
FIRST, ROWS, RANGE, RANGES, PART = range(5)
TABLE, BEGIN, END, START, OPEN, CLOSED = range(6)
FIELDS = 8
# Cells that ranges begin at multiples of; and turns that are the fewest worth an item of their own.
TURN, LEAST = 64, 8


@dataclass(frozen=True, eq=False)
class Join:
    """Rows with several partial results, or none: of rows[i] slots[ptr[i] : ptr[i + 1]], each part * place + row."""

    rows: I32
    ptr: I32
    slots: I32


@dataclass(frozen=True, eq=False)
class Lifted:
    """Blocks in the order in which their codes are lifted, `room` of them in a round.

    blocks [L]; table: for every entry of the segments' blocks, where its block is in its round.
    """

    blocks: I32
    table: I32
    room: int


@dataclass(frozen=True, eq=False)
class Plan:
    """See above. place: rows of a tile; parts: partial results; rounds: items of round r are rounds[r] to
    rounds[r + 1] - 1, the longest first."""

    items: I32
    ranges: I32
    rounds: list[int]
    place: int
    parts: int
    join: Join
    lifted: Lifted


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Rows cut into tiles: first (an index of the segments' rows), rows, lowest and highest position."""

    first: I64
    rows: I64
    low: I64
    high: I64

    def all_rows(self, which: I64) -> tuple[I64, I64]:
        """The rows of several tiles one after the other: number of the tile in `which`, and of the row in it."""
        count = self.rows[which]
        number = np.repeat(np.arange(len(which)), count)
        return number, np.arange(len(number)) - np.repeat(np.cumsum(count) - count, count)


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Cells `first` to `last` - 1 of a segment for a tile, in a round; items: which item."""

    tile: I64
    segment: I64
    first: I64
    last: I64
    round: I64
    item: I64

    def take(self, which: I64 | npt.NDArray[np.bool_], **changed: I64) -> _Pieces:
        """Some of them, or in another order."""
        fields = {name: changed.get(name, getattr(self, name)[which]) for name in self.__dataclass_fields__}
        return _Pieces(**fields)


def plan(segments: Segments, window: int, *, place: int, block_size: int, room: int, slots: int) -> Plan:
    """Items of a step.

    place: rows of a tile; room: blocks that can be lifted at a time; slots: blocks of the grid for one K/V head that
    the device runs at once.
    """
    tiles, seen = _pieces(segments, window, place)
    lifted, shift = _lifted(segments, seen, block_size, room)
    # Cells are numbered in the order of lifting, and rounds end at multiples.
    shift = shift[seen.segment]
    which, turn, first, last = cut(seen.first + shift, seen.last + shift, room * block_size)
    pieces = seen.take(which, first=first - shift[which], last=last - shift[which], round=turn)
    pieces = _split(pieces, slots)
    start = segments.start.astype(np.int64)[pieces.segment]
    opened = tiles.high[pieces.tile] - window + 1 - start if window > 0 else np.zeros_like(start)
    opened = np.maximum(opened, segments.first - start)
    closed = np.minimum(pieces.last, tiles.low[pieces.tile] + 1 - start)
    ranges = _fields(segments.block_ptr[pieces.segment], pieces.first, pieces.last, start, opened, closed)
    # An item's pieces are in a row.
    range_of, tile, turn = np.searchsorted(pieces.item, np.arange(_count(pieces.item) + 1)), pieces.tile, pieces.round
    begin, count = range_of[:-1], np.diff(range_of)
    part, parts, join = _join(segments, tiles, tile[begin], place)
    items = _fields(tiles.first[tile[begin]], tiles.rows[tile[begin]], begin, count, part)
    work = np.bincount(pieces.item, pieces.last - pieces.first, len(begin))
    items = items[np.lexsort((-work, turn[begin]))]
    rounds = np.searchsorted(turn[begin], np.arange(max(1, -(-len(lifted.blocks) // room)) + 1))
    return Plan(items, ranges, rounds.tolist(), place, parts, join, lifted)


def cut(first: I64, last: I64, size: I64 | int) -> tuple[I64, I64, I64, I64]:
    """Intervals [first, last), none empty, cut at multiples of `size`: of which each piece is, in which multiple, and
    its ends."""
    size = np.broadcast_to(np.asarray(size, np.int64), first.shape)
    low = first // size
    count = (last - 1) // size - low + 1
    which = np.repeat(np.arange(len(first)), count)
    number = low[which] + np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    edge = number * size[which]
    return which, number, np.maximum(first[which], edge), np.minimum(last[which], edge + size[which])


def _pieces(segments: Segments, window: int, place: int) -> tuple[_Tiles, _Pieces]:
    """Tiles of every class, and for each of its segments the cells that a tile's rows see: from the first that any of
    them sees, rounded down to a turn, to the last."""
    classes: dict[bytes, list[int]] = {}
    for s in range(len(segments)):
        rows = segments.rows[segments.row_ptr[s] : segments.row_ptr[s + 1]]
        if rows.size and segments.length[s] > 0:
            classes.setdefault(rows.tobytes(), []).append(s)
    tiles: list[_Tiles] = []
    found: list[tuple[I64, ...]] = []
    count = 0
    for members in classes.values():
        begin, end = (int(segments.row_ptr[members[0] + i]) for i in (0, 1))
        at, positions = np.arange(begin, end, place), segments.positions[segments.rows[begin:end]].astype(np.int64)
        low, high = (f.reduceat(positions, at - begin) for f in (np.minimum, np.maximum))
        tiles.append(_Tiles(at, np.minimum(place, end - at), low, high))
        for s in members:
            start, length = int(segments.start[s]), int(segments.length[s])
            first = np.maximum(low - window + 1 - start, 0) // TURN * TURN if window > 0 else np.zeros_like(low)
            found.append((count + np.arange(len(at)), np.full(len(at), s), first, np.clip(high + 1 - start, 0, length)))
        count += len(at)
    none = np.zeros(0, np.int64)
    tile, segment, first, last = map(np.concatenate, zip(*found, strict=True)) if found else (none,) * 4
    joined = (np.concatenate([none, *(getattr(t, name) for t in tiles)]) for name in _Tiles.__dataclass_fields__)
    pieces = _Pieces(tile, segment, first, last, np.zeros_like(tile), np.zeros_like(tile))
    return _Tiles(*joined), pieces.take(last > first)


def _lifted(segments: Segments, seen: _Pieces, block_size: int, room: int) -> tuple[Lifted, I64]:
    """Blocks that are seen, and what to add to the number of a segment's cell to have it in the order of lifting."""
    n = len(segments)
    low, high = np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.int64)
    np.minimum.at(low, seen.segment, seen.first // block_size)
    np.maximum.at(high, seen.segment, -(-seen.last // block_size))
    low = np.minimum(low, high)
    base = np.cumsum(high - low) - (high - low)
    segment = np.repeat(np.arange(n), high - low)
    number = np.arange(len(segment))
    entry = segments.block_ptr[segment] + low[segment] + number - base[segment]
    table = np.zeros(len(segments.blocks), np.int32)
    table[entry] = number % room
    return Lifted(segments.blocks[entry], table, room), (base - low) * block_size


def _split(pieces: _Pieces, slots: int) -> _Pieces:
    """Pieces sorted and cut into items: none has more than half of what a slot does of a round, so that slots end their
    work at about the same time."""
    pieces = pieces.take(np.lexsort((pieces.tile, pieces.round)))
    turns = -(-(pieces.last - pieces.first) // TURN)
    group = _runs(pieces.round, pieces.tile)
    begin = np.searchsorted(group, np.arange(_count(group)))
    before = np.cumsum(turns) - turns
    at, total, of = before - before[begin][group], np.bincount(group, turns, len(begin)), pieces.round[begin]
    most = np.maximum(LEAST, np.ceil(np.bincount(of, total) / (2 * slots)))[of]
    size = np.ceil(total / np.ceil(total / most)).astype(np.int64)
    which, number, low, high = cut(at, at + turns, size[group])
    first = pieces.first[which] + (low - at[which]) * TURN
    last = np.minimum(pieces.last[which], pieces.first[which] + (high - at[which]) * TURN)
    return pieces.take(which, first=first, last=last, item=_runs(group[which], number))


def _join(segments: Segments, tiles: _Tiles, tile: I64, place: int) -> tuple[I64, int, Join]:
    """Of items of these tiles: the number of the partial result or -1, how many there are, and what becomes of them."""
    number, local = tiles.all_rows(np.arange(len(tiles.first)))
    row = segments.rows[tiles.first[number] + local]
    # Items of every tile, of every row, and the most of a row of each tile.
    items = np.bincount(tile, minlength=len(tiles.first))
    of_row = np.bincount(row, items[number], len(segments.positions))
    most = np.zeros(len(tiles.first))
    np.maximum.at(most, number, of_row[row])
    alone = (most == 1) & (items == 1)
    whole = np.zeros(len(segments.positions), np.bool_)
    whole[row[alone[number]]] = True
    left = np.flatnonzero(~alone[tile])
    part = np.full(len(tile), -1)
    part[left] = np.arange(len(left))
    number, local = tiles.all_rows(tile[left])
    row = segments.rows[tiles.first[tile[left][number]] + local]
    order = np.argsort(row, kind="stable")
    rows = np.flatnonzero(~whole)
    ptr = np.searchsorted(row[order], np.append(rows, len(segments.positions)))
    slots = (number * place + local)[order]
    return part, len(left), Join(rows.astype(np.int32), ptr.astype(np.int32), slots.astype(np.int32))


def _runs(*keys: I64) -> I64:
    """Numbers of the runs of equal keys, from 0 on."""
    changed = np.zeros(len(keys[0]), np.bool_)
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.cumsum(changed)


def _count(runs: I64) -> int:
    return int(runs[-1]) + 1 if runs.size else 0


def _fields(*columns: npt.NDArray[np.integer]) -> I32:
    """int32 [n, FIELDS] of columns, zero behind the last."""
    found = np.zeros((len(columns[0]), FIELDS), np.int32)
    for i, column in enumerate(columns):
        found[:, i] = column
    return found
