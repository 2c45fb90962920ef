"""Norm, rope and gates against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from case_base import normal, seeded
from scipy.special import expit

from polykv import ref
from polykv.types import Angles, Glu


def turn(positions: list[float], half: int, interleaved: bool) -> Angles:
    t = np.array(positions)[:, None] * 100.0 ** (-np.arange(half) / half)
    return Angles(np.cos(t).astype(np.float32), np.sin(t).astype(np.float32), interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_depends_on_the_distance_only(interleaved: bool) -> None:
    rng = seeded("rope")
    q, k = normal(rng, 1, 1, 32), normal(rng, 1, 1, 32)
    dots = []
    for p in (0.0, 3.0, 250.0):
        a, b = (ref.rope(x, turn([at], 16, interleaved)) for x, at in ((q, p + 7), (k, p)))
        dots.append(float((a * b).sum()))
    other = ref.rope(q, turn([8.0], 16, interleaved))
    assert dots == pytest.approx([dots[0]] * 3, abs=1e-5)
    assert float((other * ref.rope(k, turn([0.0], 16, interleaved))).sum()) != pytest.approx(dots[0], abs=1e-2)


def test_rope_layouts_are_a_permutation_of_each_other() -> None:
    x = normal(seeded("layouts"), 5, 2, 16)
    mixed = np.stack([x[..., :8], x[..., 8:]], axis=-1).reshape(5, 2, 16)
    positions = [0.0, 1.0, 5.0, 9.0, 100.0]
    half = ref.rope(x, turn(positions, 8, False))
    inter = ref.rope(mixed, turn(positions, 8, True))
    assert np.array_equal(np.stack([half[..., :8], half[..., 8:]], axis=-1).reshape(5, 2, 16), inter)


def test_rope_leaves_the_other_dims_and_position_zero_alone() -> None:
    x = normal(seeded("partial"), 2, 3, 20)
    y = ref.rope(x, turn([0.0, 4.0], 4, False))
    assert np.array_equal(y[0], x[0]) and np.array_equal(y[1, :, 8:], x[1, :, 8:])
    assert not np.allclose(y[1, :, :8], x[1, :, :8])


def test_rope_in_place() -> None:
    x = normal(seeded("in place"), 3, 1, 8)
    angles = turn([1.0, 2.0, 3.0], 4, True)
    want = ref.rope(x, angles)
    assert ref.rope(x, angles, out=x) is x and np.array_equal(x, want)


def test_rms_norm_gives_unit_mean_square() -> None:
    x = normal(seeded("norm"), 7, 3, 100, scale=50)
    y = ref.rms_norm(x, np.ones(100, np.float32), 0.0)
    assert np.allclose(np.square(y).mean(-1), 1, atol=1e-5)
    assert np.allclose(ref.rms_norm(x * 8, np.ones(100, np.float32), 0.0), y, atol=1e-6)
    assert not ref.rms_norm(np.zeros((1, 4), np.float32), np.ones(4, np.float32), 1e-6).any()


def test_gates() -> None:
    g = np.linspace(-30, 30, 201, dtype=np.float32)[None]
    u = np.full_like(g, 2)
    wide = g.astype(np.float64)
    assert np.allclose(ref.glu(g, u, Glu.SILU), 2 * wide * expit(wide), rtol=1e-6, atol=1e-10)
    tanh = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    assert np.allclose(ref.glu(g, u, Glu.GELU_TANH), 2 * tanh, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("kind", Glu)
def test_gates_at_the_edge_of_float32(kind: Glu) -> None:
    g = np.array([[-3e38, -1e4, 0, 1e4, 3e38]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        y = ref.glu(g, np.ones_like(g), kind)
    assert np.array_equal(y, [[0, 0, 0, 1e4, np.float32(3e38)]])
