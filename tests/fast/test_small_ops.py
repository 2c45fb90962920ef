"""Row operations and sampling of the cpu backend: what the equivalence suite does not ask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.fast.cpu import fwht, glu, merge, penalize, rms_norm, rope, sample
from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_exp import decay
from polykv.ops import load
from polykv.types import Angles, Glu

REF = load("ref")


@kernel()
def _decays(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(x.size):
        y[i] = decay(x[i])


def test_decay_is_exact_to_two_ulp() -> None:
    x = np.linspace(-87, 0, 400_001).astype(np.float32)
    y = np.empty_like(x)
    _decays(x, y)
    assert np.abs(y / np.exp(x.astype(np.float64)) - 1).max() < 2.0**-22
    edge = np.array([-np.inf, -1e30, -87.5, -0.0, 0.0, np.nan], np.float32)
    got = np.empty_like(edge)
    _decays(edge, got)
    np.testing.assert_array_equal(got, np.array([0, 0, 0, 1, 1, np.nan], np.float32))


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rows_do_not_depend_on_the_batch(rows: int) -> None:
    rng = np.random.default_rng(3)
    x, u = rng.standard_normal((2, 8, 1003)).astype(np.float32)
    w = rng.standard_normal(1003).astype(np.float32)
    for op in (
        lambda a, b: rms_norm(a, w, 1e-6),
        lambda a, b: glu(a, b, Glu.SILU),
        lambda a, b: glu(a, b, Glu.GELU_TANH),
    ):
        assert op(x, u)[:rows].tobytes() == op(x[:rows], u[:rows]).tobytes()


def test_outputs_are_written_everywhere_and_returned() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 2, 64)).astype(np.float32)
    one, signs = np.ones(64, np.float32), np.ones(64, np.float32)
    angles = Angles(*rng.standard_normal((2, 3, 16)).astype(np.float32), interleaved=False)
    calls = (
        lambda out: rms_norm(x, one, 0.0, out=out),
        lambda out: rope(x, angles, out=out),
        lambda out: fwht(x, signs, signs, out=out),
        lambda out: merge(x[None], np.zeros((1, 3, 2), np.float32), out=out)[0],
    )
    for call in calls:
        out = np.full(x.shape, np.nan, np.float32)
        assert call(out) is out
        assert np.isfinite(out).all()


def test_in_place_equals_out_of_place() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 2, 64)).astype(np.float32)
    angles = Angles(*rng.standard_normal((2, 3, 16)).astype(np.float32), interleaved=True)
    for op in (lambda a, out: rms_norm(a, a[0, 0].copy(), 1e-5, out=out), lambda a, out: rope(a, angles, out=out)):
        y = x.copy()
        assert op(y, y).tobytes() == op(x, None).tobytes()


def test_norm_of_values_whose_squares_overflow() -> None:
    x = np.array([[1e30, -1e30, 1e25, 0.0]], np.float32)
    got = rms_norm(x, np.ones(4, np.float32), 1e-6)
    np.testing.assert_allclose(got, x / np.sqrt((x.astype(np.float64) ** 2).mean()), rtol=1e-6)


@given(
    st.sampled_from((1, 2, 300, 5000)),
    st.sampled_from((0.0, 0.3, 1.0, 2.0)),
    st.sampled_from((0, 1, 5, 40, 100_000)),
    st.sampled_from((1.0, 0.999, 0.9, 0.1, 0.0)),
    st.sampled_from((0.0, 0.05, 0.5, 1.0)),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_sampling_chooses_what_ref_chooses(
    vocab: int, temperature: float, top_k: int, top_p: float, min_p: float, ties: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((3, vocab)) * 3).astype(np.float32)
    x = np.round(x) if ties else x
    filters = (np.full(3, temperature, np.float32), np.full(3, top_k, np.int32), np.full(3, top_p, np.float32))
    args = (x, *filters, np.full(3, min_p, np.float32), rng.random(3))
    assert np.array_equal(sample(*args), REF.sample(*args))


def test_sampling_with_banned_tokens_and_extreme_draws() -> None:
    x = np.full((2, 1000), -np.inf, np.float32)
    x[:, [7, 400]] = 1.0
    args = (np.ones(2, np.float32), np.zeros(2, np.int32), np.ones(2, np.float32), np.zeros(2, np.float32))
    assert sample(x, *args, np.array([0.0, np.nextafter(1.0, 0.0)])).tolist() == [7, 400]


def test_penalize_counts_an_id_once_and_can_work_in_place() -> None:
    x = np.array([[2.0, -2.0, 1.0], [3.0, 3.0, 3.0]], np.float32)
    args = ([np.int32([0, 1, 1]), np.int32([])], np.float32([2.0, 5.0]))
    want = np.array([[1.0, -4.0, 1.0], [3.0, 3.0, 3.0]], np.float32)
    assert np.array_equal(penalize(x, *args), want)
    assert x[0, 0] == 2.0
    assert penalize(x, *args, out=x) is x
    assert np.array_equal(x, want)
