"""The screen as the reference describes it: its bounds hold, and no token is lost."""

from __future__ import annotations

import numpy as np
import pytest
from case_base import normal, seeded, weight

from polykv import ref
from polykv.ref import screen
from polykv.ref.linear import round_activations
from polykv.types import QuantTensor, WeightType


def spread(seed: int, cols: int) -> np.ndarray:
    return np.exp2(np.random.default_rng(seed).uniform(0, 10, cols)).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cols", [32, 576])
def test_estimate_and_bound_contain_the_logit(seed: int, cols: int) -> None:
    rng = seeded(f"bound-{seed}-{cols}")
    w = weight(rng, WeightType.Q8_0, 200, cols)
    x, inverse = normal(rng, 5, cols) / spread(seed, cols), spread(seed, cols)
    if seed % 2:
        x[:, 3] = 1000
    x = round_activations(x.astype(np.float32)).astype(np.float64)
    exact = x @ ref.dequantize(w).astype(np.float64).T
    reach = np.linalg.norm(x * inverse, axis=1, keepdims=True)
    assert (np.abs(exact - x @ screen.estimate(w).T) <= reach * screen.bounds(w, inverse)).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_logit_is_a_candidate(seed: int) -> None:
    rng = seeded(f"candidates-{seed}")
    w = weight(rng, WeightType.Q8_0, 1000, 576)
    size = 1 / spread(seed, 576)
    x = (normal(rng, 20, 576) + 2 * np.sqrt(576) * ref.dequantize(w, rng.integers(0, 1000, 20))) * size
    x = x.astype(np.float32)
    best = (round_activations(x) @ ref.dequantize(w).T).argmax(axis=1)
    for looked_at in (1, 16):
        found = screen.candidates(x, w, np.sqrt(1 / size), looked_at)
        assert found[np.arange(20), best].all()
    # And most rows are none: with factors that fit, that is.
    assert found.mean() < 0.5


def test_planes_hold_the_codes() -> None:
    """Taken apart by hand: row 5 of the second tile, columns 7 and 23 of block 1."""
    w = weight(seeded("planes"), WeightType.Q8_0, 16, 64)
    q, blocks = w.data.reshape(16, 2, 34)[13, 1, 2:], screen.split(w).ravel()
    at = 32 * (7 // 4) + 4 * 5 + 7 % 4
    upper, lower = blocks[(2 * 1 + 1) * 144 + 16 + at], blocks[4 * 144 + (2 * 1 + 1) * 128 + at]
    assert (upper & 15) << 4 | lower & 15 == q[7] ^ 128
    assert upper & 0xF0 | lower >> 4 == q[23] ^ 128
    scale = blocks[(2 * 1 + 1) * 144 + 2 * 5 :][:2]
    assert np.array_equal(scale, w.data.reshape(16, 2, 34)[13, 1, :2])
    assert sorted(blocks.tolist()) != sorted(w.data.ravel().tolist()) and blocks.size == w.data.size


def test_the_middle_is_left_out_of_nothing() -> None:
    data = weight(seeded("middle"), WeightType.Q8_0, 8, 32).data.copy()
    data[:, 2:] = data[:, 2:] & 0xF0 | screen.MIDDLE
    w = QuantTensor(WeightType.Q8_0, data, 32)
    assert np.array_equal(screen.estimate(w), ref.dequantize(w))
