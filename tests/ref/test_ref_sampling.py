"""Sampling against distributions written out by hand, and penalties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polykv import ref

Row = list[float]


def draw(logits: Row, u: float, t: float = 1, k: int = 0, p: float = 1, m: float = 0) -> int:
    def one(value: float, kind: type) -> np.ndarray:
        return np.array([value], kind)

    row = np.array([logits], np.float32)
    return int(
        ref.sample(row, one(t, np.float32), one(k, np.int32), one(p, np.float32), one(m, np.float32), np.array([u]))[0]
    )


def by_hand(logits: Row, t: float, k: int, p: float, m: float) -> dict[int, float]:
    """Probabilities of the ids that may be drawn, in plain Python."""
    l = [float(np.float32(x)) for x in logits]
    t, p, m = (float(np.float32(x)) for x in (t, p, m))
    order = sorted(range(len(l)), key=lambda i: (-l[i], i))
    order = order[:k] if k else order
    total = sum(np.exp(l[i] - l[order[0]]) for i in order)
    probability = {i: np.exp(l[i] - l[order[0]]) / total for i in order}
    if p < 1:
        kept, mass = [], 0.0
        for i in order:
            kept.append(i)
            mass += probability[i]
            if mass >= p:
                break
        order = kept
    order = [i for i in order if probability[i] >= m * probability[order[0]]]
    weights = {i: np.exp((l[i] - l[order[0]]) / t) for i in order}
    return {i: w / sum(weights.values()) for i, w in weights.items()}


rows = hnp.arrays(np.float32, st.integers(2, 12), elements=st.integers(-5, 5).map(float))


@given(
    rows,
    st.sampled_from((0.3, 1.0, 2.0)),
    st.integers(0, 5),
    st.sampled_from((1.0, 0.9, 0.4)),
    st.sampled_from((0.0, 0.1, 0.6)),
)
@settings(deadline=None, max_examples=60)
def test_the_distribution_function_is_inverted(row: np.ndarray, t: float, k: int, p: float, m: float) -> None:
    """The ids drawn along u, and the borders between them, are those of the distribution written out by hand."""
    want = by_hand(row.tolist(), t, k, p, m)
    edge = 0.0
    for token, probability in want.items():
        assert draw(row.tolist(), edge + probability / 2, t, k, p, m) == token
        assert draw(row.tolist(), min(edge + 1e-9, 1 - 1e-12), t, k, p, m) == token or probability < 2e-9
        edge += probability
    assert draw(row.tolist(), 1 - 2**-53, t, k, p, m) == list(want)[-1]


def test_frequencies() -> None:
    logits, n = [1.0, 3.0, 2.0, 0.0], 20_000
    want = by_hand(logits, 0.8, 3, 0.999, 0.01)
    rng = np.random.default_rng(0)

    def full(value: float, kind: type) -> np.ndarray:
        return np.full(n, value, kind)

    got = ref.sample(
        np.tile(np.float32(logits), (n, 1)),
        full(0.8, np.float32), full(3, np.int32), full(0.999, np.float32), full(0.01, np.float32), rng.random(n),
    )  # fmt: skip
    counts = np.bincount(got, minlength=4) / n
    assert counts == pytest.approx([want.get(i, 0) for i in range(4)], abs=0.012)


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    assert draw([1, 5, 5, 2], 0.99, t=0) == 1
    assert draw([-np.inf, -np.inf, -3], 0.0, t=0) == 2


def test_order_is_descending_logit_then_ascending_id() -> None:
    assert [draw([0, 1, 1, 0], u) for u in (0.0, 0.5, 0.8, 0.99)] == [1, 2, 0, 3]


def test_masked_tokens_are_never_drawn() -> None:
    assert {draw([-np.inf, 0, -np.inf, 0], u) for u in np.linspace(0, 1 - 2**-53, 50)} == {1, 3}


def test_top_p_looks_before_temperature() -> None:
    # At temperature 100 the tokens are nearly equally likely, but the filter has already kept only the first.
    assert {draw([5, 1, 0], u, t=100, p=0.9) for u in (0.0, 0.5, 0.999)} == {0}


def test_a_row_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(1)
    logits, u = rng.standard_normal((7, 50)).astype(np.float32), rng.random(7)
    t, k = np.full(7, 0.7, np.float32), np.full(7, 9, np.int32)
    p, m = np.full(7, 0.9, np.float32), np.full(7, 0.05, np.float32)
    together = ref.sample(logits, t, k, p, m, u)
    for r in range(7):
        one = slice(r, r + 1)
        assert ref.sample(logits[one], t[one], k[one], p[one], m[one], u[one])[0] == together[r]


def test_penalty() -> None:
    logits = np.array([[2, -2, 0, 3], [2, -2, 0, 3]], np.float32)
    recent = [np.array([0, 1, 2, 0], np.int32), np.zeros(0, np.int32)]
    y = ref.penalize(logits, recent, np.array([2, 2], np.float32))
    assert y.tolist() == [[1, -4, 0, 3], [2, -2, 0, 3]]
    assert logits[0, 0] == 2
