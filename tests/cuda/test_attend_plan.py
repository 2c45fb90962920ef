"""Items of attention cover every cell that a row may see once, and every query finds all of its parts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.fast.cuda.attend_config import config
from polykv.fast.cuda.attend_plan import (
    CELLS,
    FIRST,
    HEAD,
    HEADS,
    OLD,
    ROW,
    ROWS,
    START,
    TABLE,
    joined,
    long,
    plan,
    sets_of,
)
from polykv.fast.cuda.layout import KINDS, groups_of_k, groups_of_v, pack, slices_of
from polykv.types import Segment, Segments

TURN, BLOCK = 64, 64
Shape = tuple[int, list[int], int, int]


def step(shared: int, own: list[int]) -> Segments:
    """Sequences that share `shared` cells (whole blocks), each with cells of its own and one row at its end."""
    blocks = iter(range(10_000))
    rows = np.arange(len(own), dtype=np.int32)

    def take(cells: int) -> np.ndarray:
        return np.array([next(blocks) for _ in range(-(-cells // BLOCK))], np.int32)

    items = [Segment(take(shared), 0, shared, rows)] if shared else []
    items += [Segment(take(n), shared, n, rows[i : i + 1]) for i, n in enumerate(own)]
    return Segments.of(items, np.array([shared + n - 1 for n in own], np.int32))


# A busy machine may take its time.
@settings(deadline=None)
@given(
    st.integers(0, 20),
    st.lists(st.integers(1, 300), min_size=1, max_size=9),
    st.sampled_from([(4, 4), (8, 2), (16, 1), (6, 2), (12, 1)]),
    st.sampled_from([0, 1, 70, 1000]),
    st.integers(1, 600),
)
def test_every_visible_cell_is_in_one_part_of_its_query(
    shared: int, own: list[int], heads: tuple[int, int], window: int, slots: int
) -> None:
    segments, (h, n_kv) = step(shared * BLOCK, own), heads
    sets = sets_of(segments, h // n_kv)
    made = plan(segments, h, n_kv, window, sets=sets, turn=TURN, slots=slots, teams=4)
    seen: Counter[tuple[int, int]] = Counter()
    for query in range(len(own) * h):
        row, head = divmod(query, h)
        kv = head // (h // n_kv)
        for part in made.parts[made.ptr[query] : made.ptr[query + 1]]:
            item, local = divmod(int(part), made.queries)
            item, at = divmod(item, n_kv)
            e = made.items[item]
            assert at == kv and local < e[ROWS] * e[HEADS] <= made.queries
            assert segments.rows[e[ROW] + local // e[HEADS]] == row
            assert kv * (h // n_kv) + e[HEAD] + local % e[HEADS] == head
            assert e[FIRST] % TURN == 0 and e[CELLS] > 0
            table = int(np.searchsorted(segments.block_ptr, e[TABLE], "right")) - 1
            assert e[START] == segments.start[table] + e[FIRST]
            for c in range(e[START], e[START] + e[CELLS]):
                seen[query, c] += 1
            of_rows = segments.rows[segments.row_ptr[table] : segments.row_ptr[table + 1]]
            new = [p - e[START] for p in segments.positions[of_rows]]
            # Cells below `old` are none that a row writes, and others are.
            assert e[OLD] == min(max(min(new), 0), e[CELLS])
    for query in range(len(own) * h):
        last = int(segments.positions[query // h])
        first = max(0, last - window + 1) if window else 0
        assert all(seen[query, c] == 1 for c in range(first, last + 1))
    assert max(seen.values()) == 1


@pytest.mark.parametrize("own", [[5], [5, 70, 1], [64] * 9])
def test_two_plans_of_a_step_have_all_of_its_cells(own: list[int]) -> None:
    """The shared segment in items of 128 queries, others in small ones: parts of both, one after the other."""
    segments, heads, n_kv = step(3 * BLOCK, own), 8, 2
    which = np.diff(segments.row_ptr) > 1 if len(own) > 1 else segments.length > 64
    few = plan(segments, heads, n_kv, 0, sets=1, turn=TURN, slots=9, teams=4, only=~which)
    many = plan(segments, heads, n_kv, 0, sets=32, turn=TURN, slots=4, teams=1, only=which)
    tables = segments.block_ptr[:-1]
    for made, chosen in ((few, ~which), (many, which)):
        assert set(np.searchsorted(tables, made.items[:, TABLE], "right") - 1) <= set(np.flatnonzero(chosen))
    base = len(few.items) * n_kv * few.queries
    ptr, parts = joined(few.cut, many.cut, base)
    for query in range(len(own) * heads):
        mine, theirs = (made.parts[made.ptr[query] : made.ptr[query + 1]] for made in (few, many))
        assert parts[ptr[query] : ptr[query + 1]].tolist() == [*mine.tolist(), *(theirs + base).tolist()]
    assert (few.parts < base).all() and len(many.parts)
    assert sets_of(segments, heads // n_kv, which) == 1 and not long(segments, which)


@pytest.mark.parametrize("slots", [132, 264, 396, 528])
def test_work_fills_the_device_once_and_evenly(slots: int) -> None:
    made = plan(step(64 * 1024, []), 32, 8, 0, sets=1, turn=TURN, slots=slots, teams=4)
    assert len(made.items) == 0
    one = Segments.of([Segment(np.arange(1024, dtype=np.int32), 0, 65536, np.zeros(1, np.int32))], np.int32([65535]))
    made = plan(one, 32, 8, 0, sets=1, turn=TURN, slots=slots, teams=4)
    assert 0.8 * slots < len(made.items) * 8 <= slots
    assert len(set(made.items[:-1, CELLS].tolist())) == 1


def test_long_segments_have_blocks_of_many_warps() -> None:
    """A short segment among them leaves blocks as they are."""
    cells, row = 65536, np.zeros(1, np.int32)
    one = Segments.of([Segment(np.arange(1024, dtype=np.int32), 0, cells, row)], np.int32([cells - 1]))
    assert long(one) and not long(step(1024 * 64, [5])) and not long(step(0, []))
    for kind in (k for k in KINDS.values() if not k.path):
        made = config(kind, kind, 128, 1, softcap=False, limit=228 << 10, long=True)
        assert (made.warps > 4) == (kind.bits <= 3)
        assert made.ctas * (made.shared + 1024) <= 228 << 10


@pytest.mark.parametrize("make", [groups_of_k, groups_of_v])
@pytest.mark.parametrize("width", [32, 64, 96, 128])
def test_groups_hold_every_code_once(make: object, width: int) -> None:
    codes = np.arange(2 * 32 * width, dtype=np.uint32).reshape(2, 32, width)
    found = make(codes)  # type: ignore[operator]
    assert found.shape == (2, width // 8, 32, 8)
    assert sorted(found.ravel().tolist()) == codes.ravel().tolist()
    # A group of K is of one cell, one of V of one dim.
    one = found // width % 32 if make is groups_of_k else found % width
    assert (one == one[..., :1]).all()


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256, 512])
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda k: k.name)
def test_tiles_take_the_bytes_they_say_and_lose_nothing(kind: object, head_dim: int) -> None:
    width, slices = slices_of(head_dim)
    rng, dims = np.random.default_rng(head_dim), width * slices
    assert width % 32 == 0 and width <= 128 and dims >= head_dim and dims - head_dim < 32 * slices
    bits = kind.bits + 6 * kind.path  # type: ignore[attr-defined]
    codes = rng.integers(0, 1 << bits, (3, 32, dims)).astype(np.uint16)
    per = slices if kind.norms else dims // 32 * (1 + kind.minima) if kind.scales else 0  # type: ignore[attr-defined]
    scales = rng.standard_normal((3, 32, per)).astype(np.float16) if per else None
    for values in (False, True):
        data = pack(kind, codes, scales, width, values=values)  # type: ignore[arg-type]
        assert data.shape == (3, kind.tile_bytes(width, slices))  # type: ignore[attr-defined]
        # Every bit of every code and scale is somewhere: the number of ones is kept.
        kept = codes
        if kind.path:  # type: ignore[attr-defined]
            # Of states the newest bits, and the older ones where a slice begins.
            kept = codes & np.where(np.arange(dims) % width == 0, 0xFFFF, 0xFFC0)
        ones = np.bitwise_count(kept).sum() + (0 if scales is None else np.bitwise_count(scales.view(np.uint16)).sum())
        assert np.bitwise_count(data).sum() == ones


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256, 512])
@pytest.mark.parametrize("limit", [100 << 10, 164 << 10, 228 << 10])
def test_shared_memory_fits(head_dim: int, limit: int) -> None:
    for k in KINDS.values():
        for v in KINDS.values():
            for sets in (1, 2):
                for one_table in (False, True) if k == v and k.path else (False,):
                    made = config(k, v, head_dim, sets, softcap=False, limit=limit, one_table=one_table)
                    if limit >= 164 << 10 or max(k.bits, v.bits) < 16:
                        assert made.ctas * (made.shared + 1024) <= limit
                    assert made.stages >= 1 + (made.copies == 0)
                    assert made.teams * made.slices * (1 + made.apart) == made.warps
