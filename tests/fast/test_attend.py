"""Attention of the cpu backend: right on the codes, and the same bits however the work is cut."""

from __future__ import annotations

import numpy as np
import pytest
from attend_cases import answer, error, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.fast.cpu import attend, kv_append, team
from polykv.fast.cpu.kv_layout import SCALE_AT
from polykv.types import Segment, Segments, Slots

PAIRS = (
    *("f32/f32", "f16/f16", "q8_0/turbo3", "turbo3/q8_0", "q4_0/q4_0", "turbo3/turbo3", "q8_0/q4_0", "f16/turbo3"),
    *("bf16/bf16", "q6_0/q5_1", "q5_1/q6_0", "q5_0/iq4_nl", "iq4_nl/q5_0", "q4_1/turbo8", "turbo8/q4_1"),
    *("turbo4/turbo2", "turbo2/turbo4", "turbo3_tcq/turbo2_tcq", "turbo2_tcq/turbo3_tcq"),
)
# Types that are multiplied as integers, but for long tables.
INTEGERS = ("q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
# Types whose levels are read as 16-bit integers.
LONG = {"turbo8", "turbo3_tcq", "turbo2_tcq"}
# rows, heads, kv heads, head_dim, tokens, block, window, softcap
SHAPES = (
    (1, 3, 1, 64, 700, 64, 0, 0.0),
    (5, 4, 2, 32, 130, 32, 40, 0.0),
    (4, 3, 1, 64, 333, 8, 100, 0.0),
    (2, 3, 1, 48, 95, 24, 0, 0.0),
    (40, 2, 1, 80, 1100, 96, 0, 20.0),
    (3, 4, 1, 256, 600, 64, 512, 0.0),
    (1, 2, 2, 16, 1, 64, 0, 0.0),
    (35, 2, 1, 96, 65, 128, 7, 0.0),
    (2, 1, 1, 192, 63, 64, 0, 0.0),
    (1, 2, 1, 512, 200, 64, 0, 0.0),
)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_on_codes_is_attention_on_decoded_values(pair: str, shape: tuple) -> None:
    rows, heads, n_kv, dim, tokens, block, window, softcap = shape
    p = problem(pair, rows, heads, n_kv, dim, tokens, block=block)
    s = p.segments([max(0, tokens - rows + r) for r in range(rows)])
    out = np.full(p.q.shape, np.nan, np.float32)
    got, lse = attend(p.q, s, p.kv, scale=dim**-0.5, window=window, softcap=softcap, out=out)
    want, want_lse = answer(p.q, s, p.kv, dim**-0.5, window, softcap)
    assert got is out
    # Queries are rounded to 16 bits for keys that are integers, weights for values that are, those of three bits among
    # them; and so are the levels of long tables.
    k, v = pair.split("/")
    rounded, long = k in INTEGERS, not LONG.isdisjoint((k, v))
    assert error(got, want) < (1e-4 if long else 7e-5 if v in ("turbo3", *INTEGERS) else 5e-5 if rounded else 1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=2e-4 if long else 1e-4 if rounded else 2e-5)


@pytest.mark.parametrize("gain", (0.3, 1.0, 5.0, 30.0))
@pytest.mark.parametrize("name", ("q8_0", "q4_0"))
def test_rounding_queries_is_nothing_next_to_rounding_keys(name: str, gain: float) -> None:
    exact = problem("f32/f32", 6, 6, 2, 64, 300, gain=gain)
    stored = problem(f"{name}/f32", 6, 6, 2, 64, 300, gain=gain)
    s = stored.segments([294 + r for r in range(6)])
    got, _ = attend(stored.q, s, stored.kv, scale=0.125)
    want, _ = answer(stored.q, s, stored.kv, 0.125)
    truth, _ = answer(exact.q, s, exact.kv, 0.125)
    assert error(got, want) < error(want, truth) / 100


@pytest.mark.parametrize("name", ("q8_0", "q4_0", "turbo3"))
def test_rounding_weights_is_nothing_whatever_they_are(name: str) -> None:
    """Weights that are all alike, one that is all, one beside many that are next to nothing; tokens of any size."""
    for gain in (0.0, 1.0, 4.0, 30.0):
        p = problem(f"f32/{name}", 3, 3, 1, 64, 200, gain=gain)
        everywhere = np.arange(256, dtype=np.int32)
        v = np.random.default_rng(1).standard_normal((256, 1, 64)).astype(np.float32)
        for spread in (0.0, 3.0):
            v *= np.exp(spread * np.random.default_rng(2).standard_normal((256, 1, 1)).astype(np.float32))
            kv_append(p.kv.v, v, Slots(everywhere // 64, everywhere % 64))
            s = p.segments([190, 198, 199])
            got, _ = attend(p.q, s, p.kv, scale=0.125)
            assert error(got, answer(p.q, s, p.kv, 0.125)[0]) < 1e-4, (gain, spread)


@pytest.mark.parametrize("name", ("q8_0", "turbo3"))
@pytest.mark.parametrize("heads", (3, 4, 24))
def test_values_that_are_no_numbers_show_where_they_are_seen(name: str, heads: int) -> None:
    p = problem(f"q8_0/{name}", 2, heads, 1, 64, 128)
    good = [x.tobytes() for x in attend(p.q, p.segments([63, 127]), p.kv, scale=0.125)[0]]
    block = p.kv.v.fields["data"][p.table[1], 0]
    scales = block[int(p.kv.v.geom[SCALE_AT]) :].view(np.uint16)
    scales[20] = 0x7E00
    out, _ = attend(p.q, p.segments([63, 127]), p.kv, scale=0.125)
    assert out[0].tobytes() == good[0]
    assert np.isnan(out[1, :, :32]).all()


@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_queries_that_are_not_finite_are_not_hidden(bad: float) -> None:
    p = problem("q8_0/turbo3", 3, 3, 1, 64, 100)
    q = p.q.copy()
    q[1, 2, 40] = bad
    out, _ = attend(q, p.segments([97, 98, 99]), p.kv, scale=0.125)
    assert np.isnan(out[1, 2]).all()
    rest = np.delete(out.reshape(9, 64), 5, axis=0)
    good, _ = attend(p.q, p.segments([97, 98, 99]), p.kv, scale=0.125)
    np.testing.assert_array_equal(rest, np.delete(good.reshape(9, 64), 5, axis=0))


@given(
    st.sampled_from(("q8_0/turbo3", "f16/f16", "turbo3/turbo3")),
    st.integers(1, 1500),
    st.integers(0, 700),
    st.integers(1, 45),
    st.randoms(use_true_random=False),
)
@settings(max_examples=25, deadline=None)
def test_a_row_does_not_depend_on_its_company(pair: str, tokens: int, window: int, rows: int, random) -> None:
    """One row alone, in any batch, with any cut of the keys, few rows or many: equal bits."""
    p = problem(pair, rows, 4, 2, 32, tokens, seed=random.randrange(99))
    positions = [random.randrange(tokens) for _ in range(rows)]
    cuts = sorted(random.sample(range(1, len(p.table)), min(2, len(p.table) - 1)))
    out, lse = attend(p.q, p.segments(positions, cuts), p.kv, scale=0.2, window=window)
    for r in {0, rows // 2, rows - 1}:
        alone, alone_lse = attend(p.q[r : r + 1], p.segments([positions[r]]), p.kv, scale=0.2, window=window)
        assert alone[0].tobytes() == out[r].tobytes()
        assert alone_lse[0].tobytes() == lse[r].tobytes()


def test_sequences_with_a_shared_prefix_equal_separate_ones() -> None:
    """Two agents share 10 blocks and have private suffixes; one of them sits inside a chunk of 512."""
    p = problem("q8_0/turbo3", 3, 6, 2, 64, 1000)
    t, rows = p.table, np.arange(3, dtype=np.int32)
    private = (t[10:13], t[13:16])
    items = [
        Segment(t[:10], 0, 640, rows),
        Segment(private[0], 640, 150, rows[[0, 2]]),
        Segment(private[1], 640, 130, rows[1:2]),
    ]
    out, lse = attend(p.q, Segments.of(items, np.array([789, 769, 700], np.int32)), p.kv, scale=0.1)
    for r, (blocks, length, at) in enumerate(((private[0], 150, 789), (private[1], 130, 769), (private[0], 150, 700))):
        one = Segment(np.concatenate([t[:10], blocks]), 0, 640 + length, rows[:1])
        alone, alone_lse = attend(p.q[r : r + 1], Segments.of([one], np.array([at], np.int32)), p.kv, scale=0.1)
        assert alone[0].tobytes() == out[r].tobytes()
        assert alone_lse[0].tobytes() == lse[r].tobytes()


@pytest.mark.parametrize("rows", [3, 70])
def test_threads_do_not_change_a_bit(rows: int) -> None:
    p = problem("q8_0/turbo3", rows, 4, 2, 64, 1400)
    s = p.segments(list(range(1400 - rows, 1400)))
    before = team.threads()
    results = []
    for n in sorted({1, before}):
        team.set_threads(n)
        results.append([x.tobytes() for x in attend(p.q, s, p.kv, scale=0.1)])
    team.set_threads(before)
    assert results[0] == results[-1]


def test_rows_that_see_nothing() -> None:
    p = problem("q8_0/turbo3", 3, 2, 1, 64, 100)
    rows = np.array([1], np.int32)
    items = [Segment(p.table, 0, 100, rows), Segment(p.table[:0], 128, 0, rows)]
    out, lse = attend(p.q, Segments.of(items, np.array([50, 50, 50], np.int32)), p.kv, scale=1.0)
    assert not out[[0, 2]].any()
    assert np.isneginf(lse[[0, 2]]).all()
    assert np.isfinite(lse[1]).all()
    out, lse = attend(p.q[:0], Segments.of([], np.zeros(0, np.int32)), p.kv, scale=1.0)
    assert out.shape == (0, 2, 64)
    out, lse = attend(p.q, Segments.of([], np.zeros(3, np.int32)), p.kv, scale=1.0)
    assert not out.any()
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("pair", PAIRS)
def test_huge_scores_and_outliers_stay_finite(pair: str) -> None:
    p = problem(pair, 2, 2, 1, 64, 300, gain=300.0)
    s = p.segments([298, 299])
    out, lse = attend(p.q, s, p.kv, scale=1.0)
    want, _ = answer(p.q, s, p.kv, 1.0)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
    # One key wins by far, so the output is that value.
    assert error(out, want) < 1e-3


def test_cells_beyond_a_segment_never_matter() -> None:
    p = problem("q8_0/turbo3", 2, 2, 1, 64, 70)
    s = p.segments([68, 69])
    before = [x.tobytes() for x in attend(p.q, s, p.kv, scale=0.3)]
    for arena in (p.kv.k, p.kv.v):
        # Scales of unused cells become NaN patterns, as memory of freed blocks may hold anything.
        words = arena.fields["data"][p.table[1], 0].view(np.uint16)
        scales = words[arena.geom[SCALE_AT] // 2 :][: 64 * (2 if arena is p.kv.k else 1)].reshape(-1, 64)
        scales[:, 6:] = 0x7E00
    assert [x.tobytes() for x in attend(p.q, s, p.kv, scale=0.3)] == before


def test_outputs_may_overwrite_queries() -> None:
    for rows in (2, 40):
        p = problem("f16/turbo3", rows, 4, 2, 64, 600)
        s = p.segments(list(range(600 - rows, 600)))
        want, _ = attend(p.q, s, p.kv, scale=0.1)
        q = p.q.copy()
        got, _ = attend(q, s, p.kv, scale=0.1, out=q)
        assert got.tobytes() == want.tobytes()
