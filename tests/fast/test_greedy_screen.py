"""Screened greedy tokens are those of all logits, bit for bit, whatever the matrix and the row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from case_base import normal, seeded, weight
from case_head import HIDDEN, hidden

from polykv.fast.cpu.dequantize import dequantize
from polykv.fast.cpu.head import head
from polykv.fast.cpu.linear import linear
from polykv.fast.cpu.planes import prepare_head
from polykv.fast.cpu.screen import MOST_ROWS, greedy
from polykv.fast.cpu.team import TEAM
from polykv.model.screen import factors
from polykv.ref import screen as ref
from polykv.types import F32, Activations, HeadWeights, QuantTensor, Resident, WeightType

Q8 = Activations.Q8
# Columns of very different size, as hidden states have them.
SPREAD = 3.0


def plain(vocab: int, cols: int, seed: str = "") -> HeadWeights:
    rng = seeded(f"screen-{vocab}x{cols}-{seed}")
    return HeadWeights(np.ones(cols, np.float32), weight(rng, WeightType.Q8_0, vocab, cols), 0.0, 1e-6)


def prepared(w: HeadWeights, inverse: F32 | None = None) -> HeadWeights:
    inverse = np.ones(w.out.cols, np.float32) if inverse is None else inverse
    found = prepare_head(w, inverse, converted=lambda row: None)
    assert found.screen is not None and found.out.type is Resident.Q8_0_PLANES
    return found


def states(w: HeadWeights, n: int, seed: str = "") -> tuple[F32, F32]:
    """Rows that point at some row of the matrix, as those of a model that is sure of itself; and fitting factors."""
    rng = seeded(f"states-{seed}")
    size = np.exp(SPREAD / 2 * rng.standard_normal(w.out.cols)).astype(np.float32)
    rows = dequantize(w.out, rng.integers(0, w.out.rows, n).astype(np.int32)) * 4 * np.sqrt(w.out.cols)
    h = (rows + normal(rng, n, w.out.cols)) * size
    return h, factors(h)


def assert_same(h: F32, w: HeadWeights, found: HeadWeights) -> np.ndarray:
    """Compare with all logits of the matrix as a file has it; how many were computed."""
    want = head(h, w, activations=Q8)
    got = greedy(h, found, activations=Q8)
    assert np.array_equal(got.ids, want.argmax(axis=1))
    assert np.array_equal(got.logits, want.max(axis=1))
    return got.exact


@pytest.mark.parametrize(("vocab", "cols"), [(8, 32), (16, 32), (1000, 576), (1000, 640), (8192, 640), (4104, 96)])
def test_tokens_of_all_logits(vocab: int, cols: int) -> None:
    w = plain(vocab, cols)
    h, inverse = states(w, 40)
    found = prepared(w, inverse)
    exact = np.array([assert_same(h[r : r + 1], w, found)[0] for r in range(len(h))])
    assert ((exact > 0) & (exact % 8 == 0) & (exact <= vocab)).all()
    if vocab >= 1000:
        # It did screen: most rows were never computed.
        assert exact.mean() < vocab / 2
    for n in (2, 3, 40):
        assert_same(h[:n], w, found)


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("cols", [32, 576])
def test_hard_rows(kind: str, cols: int) -> None:
    w = plain(1000, cols)
    found = prepared(w, np.exp2(seeded(kind).uniform(0, 10, cols)).astype(np.float32))
    h = hidden("hard", kind, 2, cols)
    if kind == "nan":
        got = greedy(h, found, activations=Q8)
        assert np.isnan(got.logits[0]) and np.isfinite(got.logits[1]) and (got.exact == 1000).all()
        assert_same(h[1:], w, found)
    else:
        assert_same(h, w, found)
        assert_same(h[1:], w, found)


def test_rows_that_all_may_win() -> None:
    """Nothing but lower nibbles tells these rows apart: every one is computed."""
    w = plain(512, 64)
    data = np.repeat(w.out.data[:1], 512, axis=0)
    codes = data.reshape(512, 2, 34)[..., 2:]
    codes[...] = (codes & 0xF0) | seeded("low").integers(0, 16, codes.shape, dtype=np.uint8)
    w = replace(w, out=QuantTensor(WeightType.Q8_0, data, 64))
    exact = assert_same(normal(seeded("any"), 1, 64), w, prepared(w))
    assert exact[0] == 512


@pytest.mark.parametrize("where", [(3, 4), (0, 999), (7, 8), (991, 992, 993), (500, 12)])
def test_the_lowest_of_equal_logits(where: tuple[int, ...]) -> None:
    w = plain(1000, 576)
    data = w.out.data.copy()
    data[list(where)] = data[where[0]]
    w = replace(w, out=QuantTensor(WeightType.Q8_0, data, 576))
    h = dequantize(w.out, np.array([where[0]], np.int32)) * 50
    assert_same(h, w, prepared(w))
    assert greedy(h, prepared(w), activations=Q8).ids[0] == min(where)


def test_numbers_that_overflow_are_found() -> None:
    """A logit that is not finite is found though its row would not win, and other rows stay what they are."""
    w = plain(1000, 64)
    h, data = normal(seeded("over"), 1, 64), w.out.data.copy()
    data.reshape(1000, 2, 34)[500, :, :2] = np.array([60000], "<f2").view(np.uint8)
    big = replace(w, norm=np.full(64, 3e33, np.float32), out=QuantTensor(WeightType.Q8_0, data, 64))
    assert (~np.isfinite(head(h, big, activations=Q8))).sum() == 1
    for sign in (1, -1):
        got = greedy(h * np.float32(sign), prepared(big), activations=Q8)
        assert np.isnan(got.logits[0]) and got.exact[0] == 1000


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_scales_that_are_not_finite_are_not_screened(value: float) -> None:
    w = plain(1000, 64)
    data = w.out.data.copy()
    data[77, 34:36] = np.array([value], "<f2").view(np.uint8)
    w = replace(w, out=QuantTensor(WeightType.Q8_0, data, 64))
    assert prepare_head(w, np.ones(64, np.float32), converted=lambda row: None) is w
    assert np.isnan(greedy(normal(seeded("x"), 1, 64), w, activations=Q8).logits[0])


def test_what_is_not_prepared() -> None:
    ones = np.ones(64, np.float32)
    for w in (plain(1001, 64), replace(plain(1000, 64), softcap=30.0)):
        assert prepare_head(w, ones, converted=lambda row: None) is w
    with pytest.raises(ValueError, match="inverse"):
        prepare_head(plain(1000, 64), ones / 2, converted=lambda row: None)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_computed_does_not_depend_on_workers(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w = plain(8192, 640)
    h, inverse = states(w, 12)
    found = prepared(w, inverse)
    want = [greedy(h[r : r + 1], found, activations=Q8) for r in range(12)]
    monkeypatch.setattr(TEAM, "workers", min(workers, TEAM.workers))
    for n in range(1, MOST_ROWS + 1):
        for r in range(12 - n):
            got = greedy(h[r : r + n].copy(), found, activations=Q8)
            for field in ("ids", "logits", "exact"):
                assert np.array_equal(getattr(got, field), np.concatenate([getattr(g, field) for g in want[r : r + n]]))


def test_other_activations_take_all_logits() -> None:
    w = plain(1000, 64)
    h = normal(seeded("f32"), 1, 64)
    got = greedy(h, prepared(w), activations=Activations.F32)
    want = head(h, w, activations=Activations.F32)
    assert got.exact[0] == 1000 and got.ids[0] == want.argmax() and got.logits[0] == want.max()


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("cols", [32, 288, 1120])
def test_products_of_planes(cols: int, activations: Activations) -> None:
    """Equal bits for every number of rows: few, unpacked tiles, more columns than are unpacked at a time."""
    w = plain(72, cols)
    found = prepared(w).out
    x = normal(seeded("products"), 130, cols)
    for n in (1, 2, 16, 17, 130):
        got, want = (linear(x[:n], m, activations=activations) for m in (found, w.out))
        assert np.array_equal(got, want), n
    assert np.array_equal(dequantize(found), dequantize(w.out))
    pick = np.array([71, 0, 8, 7, 7], np.int32)
    assert np.array_equal(dequantize(found, pick), dequantize(w.out, pick))


@pytest.mark.parametrize(("vocab", "cols"), [(8, 32), (1000, 576), (16384, 640)])
def test_conversion_is_that_of_the_reference(vocab: int, cols: int) -> None:
    w = plain(vocab, cols)
    told: list[int] = []
    inverse = np.exp2(seeded("inverse").uniform(0, 8, cols)).astype(np.float32)
    found = prepare_head(w, inverse, converted=told.append)
    assert found.screen is not None
    assert np.array_equal(found.out.data, ref.split(w.out))
    want = ref.bounds(w.out, inverse)
    # Never below, and hardly above.
    assert (found.screen.bounds >= want).all() and (found.screen.bounds <= want * 1.001).all()
    assert found.screen.largest >= np.linalg.norm(dequantize(w.out) / inverse, axis=1).max()
    assert told == sorted(told) and told[-1] == vocab


def test_bounds_of_rounding_alone() -> None:
    """An estimate that leaves nothing out is still off by roundings, and rows closer than that are all computed."""
    w = plain(1024, 640)
    data = w.out.data.copy()
    codes = data.reshape(1024, 20, 34)[..., 2:]
    codes[...] = (codes & 0xF0) | ref.MIDDLE
    # Pairs of rows that differ in one code of 640, the least there is.
    data[1::2] = data[::2]
    data.reshape(512, 2, 20, 34)[:, 1, 19, 33] ^= 0x10
    w = replace(w, out=QuantTensor(WeightType.Q8_0, data, 640))
    h, inverse = states(w, 30)
    found = prepared(w, inverse)
    exact = [assert_same(h[r : r + 1], w, found)[0] for r in range(30)]
    assert max(exact) < 64
