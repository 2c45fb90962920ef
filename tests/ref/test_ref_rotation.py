"""The Hadamard rotation against a dense matrix, golden vectors and its own algebra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv import ref
from polykv.cache.codecs import codec

SIZES = (1, 2, 4, 16, 32, 64, 128, 256, 512)
sizes = st.sampled_from(SIZES)
seeds = st.integers(0, 2**32 - 1)


def sylvester(g: int) -> np.ndarray:
    """H_1 = [1], H_2n = [[H, H], [H, -H]]."""
    h = np.ones((1, 1))
    while len(h) < g:
        h = np.block([[h, h], [h, -h]])
    return h


def draw(g: int, seed: int, n: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    s1, s2 = (rng.choice(np.array([-1, 1], np.float32), g) for _ in range(2))
    return rng.standard_normal((n, 2 * g)).astype(np.float32), s1, s2


@given(sizes, seeds)
@settings(deadline=None, max_examples=40)
def test_equals_the_dense_matrix(g: int, seed: int) -> None:
    x, s1, s2 = draw(g, seed)
    matrix = np.diag(s2) @ sylvester(g) @ np.diag(s1) / np.sqrt(g)
    want = (x.reshape(3, 2, g).astype(np.float64) @ matrix.T).reshape(x.shape)
    assert np.abs(ref.fwht(x, s1, s2) - want).max() < 5e-6


@given(sizes, seeds)
@settings(deadline=None, max_examples=40)
def test_inverse_undoes_it_and_lengths_survive(g: int, seed: int) -> None:
    x, s1, s2 = draw(g, seed)
    y = ref.fwht(x, s1, s2)
    assert np.abs(ref.fwht(y, s1, s2, inverse=True) - x).max() < 5e-6
    assert np.allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)


@given(sizes, seeds)
@settings(deadline=None, max_examples=40)
def test_dot_products_survive(g: int, seed: int) -> None:
    x, s1, s2 = draw(g, seed, n=6)
    y = ref.fwht(x, s1, s2).astype(np.float64)
    assert np.allclose(y @ y.T, x.astype(np.float64) @ x.T.astype(np.float64), atol=2e-5 * g)


def test_golden_vectors(golden: Path) -> None:
    z, c = np.load(golden / "formats/rotation.npz"), codec("turbo3")
    s1, s2 = np.array(c.signs1, np.float32), np.array(c.signs2, np.float32)
    y = ref.fwht(z["x"], s1, s2)
    assert np.abs(y - z["forward"]).max() < 2e-6
    assert np.abs(ref.fwht(y, s1, s2, inverse=True) - z["inverse_of_forward"]).max() < 2e-6


def test_signs_are_the_published_ones() -> None:
    rng, c = np.random.default_rng(42), codec("turbo3")
    assert np.array_equal(rng.choice([-1.0, 1.0], 128), c.signs1)
    assert np.array_equal(rng.choice([-1.0, 1.0], 128), c.signs2)


@pytest.mark.parametrize("g", [16, 32, 64])
def test_a_padded_vector_repeats_itself_up_to_sign(g: int) -> None:
    """Why the resident layout of small heads keeps g codes of 128."""
    c = codec("turbo3")
    s1, s2 = np.array(c.signs1, np.float32), np.array(c.signs2, np.float32)
    x = np.random.default_rng(g).standard_normal(g).astype(np.float32)
    y = ref.fwht(np.pad(x, (0, 128 - g)), s1, s2)
    small = ref.fwht(x, s1[:g], s2[:g])
    tiles = 128 // g
    assert np.abs(y - np.tile(small * s2[:g], tiles) * s2 / np.sqrt(tiles)).max() < 1e-6


def test_rotation_stays_accurate_at_large_scale() -> None:
    x, s1, s2 = draw(256, 7)
    x *= 10
    want = x.astype(np.float64).reshape(3, 2, 256) @ (np.diag(s2) @ sylvester(256) @ np.diag(s1) / 16).T
    assert np.abs(ref.fwht(x, s1, s2) - want.reshape(x.shape)).max() < 1e-5 * np.abs(want).max()
