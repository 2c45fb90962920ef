"""The Hadamard rotation against a dense matrix, golden vectors and its own algebra."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv import ref
from polykv.cache.codecs import codec
from polykv.hadamard import CORES, core, core_order

SIZES = (1, 2, 4, 16, 32, 64, 128, 256, 512, 12, 20, 28, 36, 72, 80, 96, 112, 160, 320, 576)
DIGESTS = {12: "aa84aa7a", 20: "6da504dd", 28: "2125bac5", 36: "1a346dd3"}
sizes = st.sampled_from(SIZES)
seeds = st.integers(0, 2**32 - 1)


def sylvester(g: int) -> np.ndarray:
    """H_1 = [1], H_2n = [[H, H], [H, -H]]."""
    h = np.ones((1, 1))
    while len(h) < g:
        h = np.block([[h, h], [h, -h]])
    return h


def dense(g: int) -> np.ndarray:
    """The matrix of order g as `polykv.hadamard` defines it."""
    m = core_order(g)
    return np.kron(sylvester(g // m), core(m))


def test_orders() -> None:
    found = [g for g in range(1, 600) if core_order(g)]
    assert {64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576} <= set(found)
    assert [core_order(g) for g in (0, 3, 10, 24, 40, 100, 104, 200, 448)] == [0, 0, 0, 12, 20, 0, 0, 0, 28]
    for g in found:
        if g <= 320:
            h = dense(g)
            assert h.shape == (g, g) and set(np.unique(h)) <= {-1, 1}
            assert np.array_equal(h @ h.T, g * np.eye(g)), g


@pytest.mark.parametrize("m", CORES[1:])
def test_cores_are_constants(m: int) -> None:
    """Files depend on them: rows of a core never change, and nobody can write to them."""
    assert hashlib.blake2b(core(m).tobytes(), digest_size=4).hexdigest() == DIGESTS[m]
    with pytest.raises(ValueError, match="read-only"):
        core(m)[0, 0] = 0


def draw(g: int, seed: int, n: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    s1, s2 = (rng.choice(np.array([-1, 1], np.float32), g) for _ in range(2))
    return rng.standard_normal((n, 2 * g)).astype(np.float32), s1, s2


@given(sizes, seeds)
@settings(deadline=None, max_examples=40)
def test_equals_the_dense_matrix(g: int, seed: int) -> None:
    x, s1, s2 = draw(g, seed)
    matrix = np.diag(s2) @ dense(g) @ np.diag(s1) / np.sqrt(g)
    want = (x.reshape(3, 2, g).astype(np.float64) @ matrix.T).reshape(x.shape)
    assert np.abs(ref.fwht(x, s1, s2) - want).max() < 5e-6
    back = (x.reshape(3, 2, g).astype(np.float64) @ matrix).reshape(x.shape)
    assert np.abs(ref.fwht(x, s1, s2, inverse=True) - back).max() < 5e-6


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
    s1, s2 = c.signs(128)
    y = ref.fwht(z["x"], s1, s2)
    assert np.abs(y - z["forward"]).max() < 2e-6
    assert np.abs(ref.fwht(y, s1, s2, inverse=True) - z["inverse_of_forward"]).max() < 2e-6


@pytest.mark.parametrize("g", [128, 144, 160, 192, 224, 288, 320, 448, 576])
def test_signs_are_drawn_as_published(g: int) -> None:
    rng, (s1, s2) = np.random.default_rng(42), codec("turbo3").signs(g)
    assert np.array_equal(rng.choice([-1.0, 1.0], g), s1)
    assert np.array_equal(rng.choice([-1.0, 1.0], g), s2)


def test_small_groups_take_the_first_signs() -> None:
    c = codec("turbo2_tcq")
    for g in (16, 72, 112):
        assert all(np.array_equal(small, full[:g]) for small, full in zip(c.signs(g), c.signs(128), strict=True))
    with pytest.raises(ValueError, match="not rotated"):
        codec("q8_0").signs(32)


@pytest.mark.parametrize("g", [16, 32, 64])
def test_a_padded_vector_repeats_itself_up_to_sign(g: int) -> None:
    """What padding to 128 wastes: every code beyond the first g follows from one of them."""
    c = codec("turbo3")
    (s1, s2), small_signs = c.signs(128), c.signs(g)
    x = np.random.default_rng(g).standard_normal(g).astype(np.float32)
    y = ref.fwht(np.pad(x, (0, 128 - g)), s1, s2)
    small = ref.fwht(x, *small_signs)
    tiles = 128 // g
    assert np.abs(y - np.tile(small * s2[:g], tiles) * s2 / np.sqrt(tiles)).max() < 1e-6


def test_rotation_stays_accurate_at_large_scale() -> None:
    x, s1, s2 = draw(256, 7)
    x *= 10
    want = x.astype(np.float64).reshape(3, 2, 256) @ (np.diag(s2) @ sylvester(256) @ np.diag(s1) / 16).T
    assert np.abs(ref.fwht(x, s1, s2) - want.reshape(x.shape)).max() < 1e-5 * np.abs(want).max()
