"""Items of many rows: every cell that a row may see is in one range of one item of it, in the round that lifts it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from case_attention import Plan as Batch
from case_attention import Seq
from hypothesis import given, settings
from hypothesis import strategies as st
from prefill_cases import EMPTY

from polykv.fast.cuda.attend import _many
from polykv.fast.cuda.prefill_config import config
from polykv.fast.cuda.prefill_plan import (
    BEGIN,
    CLOSED,
    END,
    FIRST,
    OPEN,
    PART,
    RANGE,
    RANGES,
    ROWS,
    START,
    TABLE,
    TURN,
    Plan,
    cut,
    plan,
)
from polykv.types import Segments

BLOCK = 64


def seen(segments: Segments, window: int) -> Counter[tuple[int, int, int]]:
    """Row, entry of the block table and position of every cell that a row sees."""
    found: Counter[tuple[int, int, int]] = Counter()
    for s in range(len(segments)):
        start, length = int(segments.start[s]), int(segments.length[s])
        for row in segments.rows[segments.row_ptr[s] : segments.row_ptr[s + 1]].tolist():
            last = int(segments.positions[row])
            first = max(start, last - window + 1) if window else start
            for p in range(first, min(start + length, last + 1)):
                found[row, int(segments.block_ptr[s]) + (p - start) // BLOCK, p] += 1
    return found


def planned(segments: Segments, window: int, made: Plan) -> Counter[tuple[int, int, int]]:
    """The same from the items, as a kernel would go through them."""
    found: Counter[tuple[int, int, int]] = Counter()
    for r in range(len(made.rounds) - 1):
        lifted = made.lifted.blocks[r * made.lifted.room : (r + 1) * made.lifted.room]
        for item in made.items[made.rounds[r] : made.rounds[r + 1]]:
            rows = segments.rows[item[FIRST] : item[FIRST] + item[ROWS]].tolist()
            assert 0 < len(rows) <= made.place and item[RANGES] > 0
            for e in made.ranges[item[RANGE] : item[RANGE] + item[RANGES]]:
                assert e[BEGIN] % TURN == 0 and e[END] > e[BEGIN]
                for cell in range(e[BEGIN], e[END]):
                    entry, position = int(e[TABLE]) + cell // BLOCK, int(e[START]) + cell
                    assert lifted[made.lifted.table[entry]] == segments.blocks[entry]
                    for row in rows:
                        last = segments.positions[row]
                        sees = position <= last and (window == 0 or position > last - window)
                        # Cells that are not compared with the rows' positions are seen by all of them.
                        assert sees or not e[OPEN] <= cell < e[CLOSED]
                        found[row, entry, position] += sees
    return +found


# A busy machine may take its time.
@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 40)), min_size=1, max_size=4),
    st.sampled_from([0, 1, 70, 1000]),
    st.sampled_from([8, 32, 128]),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([1, 33]),
)
def test_every_visible_cell_is_in_one_item_of_its_row(
    shared: int, seqs: list[tuple[int, int]], window: int, place: int, room: int, slots: int
) -> None:
    batch = Batch(tuple(Seq(shared * BLOCK + more + rows, rows) for more, rows in seqs), shared=shared * BLOCK)
    segments, _, _ = batch.build("plan")
    made = plan(segments, window, place=place, block_size=BLOCK, room=room, slots=slots)
    assert planned(segments, window, made) == seen(segments, window)
    results_are_complete(segments, made)


def results_are_complete(segments: Segments, made: Plan) -> None:
    """A row has its result from one item, or from the join of all of its partial results; never from both."""
    writes: Counter[int] = Counter(made.join.rows.tolist())
    parts: dict[int, list[int]] = {row: [] for row in made.join.rows.tolist()}
    for item in made.items:
        for i, row in enumerate(segments.rows[item[FIRST] : item[FIRST] + item[ROWS]].tolist()):
            if item[PART] < 0:
                writes[row] += 1
            else:
                parts[row].append(int(item[PART]) * made.place + i)
    assert writes == Counter(range(len(segments.positions)))
    assert sorted(made.items[:, PART][made.items[:, PART] >= 0].tolist()) == list(range(made.parts))
    for i, row in enumerate(made.join.rows.tolist()):
        assert sorted(made.join.slots[made.join.ptr[i] : made.join.ptr[i + 1]].tolist()) == sorted(parts[row])


def test_rows_without_cells_are_joined_from_nothing() -> None:
    made = plan(EMPTY, 0, place=32, block_size=BLOCK, room=8, slots=4)
    assert planned(EMPTY, 0, made) == seen(EMPTY, 0)
    results_are_complete(EMPTY, made)
    nothing = Segments.of([], np.zeros(0, np.int32))
    made = plan(nothing, 0, place=32, block_size=BLOCK, room=8, slots=4)
    assert made.rounds == [0, 0] and made.parts == 0 and len(made.items) == 0


def test_a_long_prompt_is_one_item_a_tile_and_a_short_one_fills_the_device() -> None:
    long, _, _ = Batch((Seq(32768, 4096),)).build("long")
    made = plan(long, 0, place=32, block_size=BLOCK, room=1 << 30, slots=33)
    assert len(made.items) == 128 and made.parts == 0
    # The longest come first.
    work = [int((r[:, END] - r[:, BEGIN]).sum()) for r in (made.ranges[i[RANGE] :][: i[RANGES]] for i in made.items)]
    assert work == sorted(work, reverse=True)
    short, _, _ = Batch((Seq(32768, 64),)).build("short")
    made = plan(short, 0, place=32, block_size=BLOCK, room=1 << 30, slots=33)
    assert 33 <= len(made.items) <= 2 * 33 + 2 and made.parts == len(made.items)


def test_many_rows_are_told_by_the_queries_of_a_segment() -> None:
    segments, _, _ = Batch((Seq(100, 31), Seq(64, 1)), shared=64).build("rows")
    assert _many(segments, 4) and not _many(segments, 3)
    # All heads of a row have to fit a block.
    assert not _many(segments, 64)
    assert not _many(Segments.of([], np.zeros(0, np.int32)), 4)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_pieces_of_intervals(size: int) -> None:
    first, last = np.array([0, 5, 63, 64]), np.array([1, 130, 65, 128])
    which, number, low, high = cut(first, last, size)
    assert [list(range(a, b)) for a, b in zip(first, last, strict=True)] == [
        [c for a, b in zip(low[which == i], high[which == i], strict=True) for c in range(a, b)] for i in range(4)
    ]
    assert (low // size == number).all() and ((high - 1) // size == number).all()


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256, 512])
@pytest.mark.parametrize("limit", [100 << 10, 164 << 10, 228 << 10])
def test_shared_memory_fits(head_dim: int, limit: int) -> None:
    made = config(head_dim, softcap=False, limit=limit)
    assert made.ctas * (made.shared + 1024) <= limit
    assert made.threads <= 256 and made.queries >= 32 and made.dims >= head_dim
