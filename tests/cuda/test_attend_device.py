"""Attention on the device against float64 arithmetic on what the same tiles stand for."""

from __future__ import annotations

import pytest
from attention import Shape, compare

from polykv.fast.cuda.device import problem

GPU = problem()
pytestmark = pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}")

TYPES = (
    *("f16", "bf16", "q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
    *("turbo8", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq"),
)
MIXED = (
    *("q8_0/turbo3", "f16/turbo4", "turbo2/f16", "q4_0/turbo3", "q8_0/turbo3_tcq", "turbo2_tcq/f16"),
    *("turbo3_tcq/turbo2_tcq", "turbo3_tcq_n/turbo3_tcq", "turbo8/q4_1", "q5_1/turbo8", "bf16/iq4_nl"),
)
PAIRS = [*((t, t) for t in TYPES), *(tuple(pair.split("/")) for pair in MIXED)]
# heads, K/V heads, head_dim, cells of the shared segment, of two private ones, window, softcap
SHAPES = [
    (8, 2, 128, 1024, (0, 0), 0, 0.0),
    (4, 2, 64, 0, (63, 1), 0, 0.0),
    (6, 2, 96, 192, (5, 64), 0, 0.0),
    (16, 1, 128, 640, (65, 3), 100, 0.0),
    (4, 2, 256, 448, (7, 9), 0, 30.0),
    (4, 1, 512, 320, (1, 2), 0, 0.0),
    (4, 4, 192, 128, (33, 31), 50, 0.0),
    (8, 2, 32, 256, (33, 31), 0, 0.0),
    (4, 1, 384, 128, (33, 31), 0, 0.0),
]


@pytest.mark.parametrize("peak", [1.0, 6.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_attention_is_that_of_the_decoded_values(pair: tuple[str, str], shape: Shape, peak: float) -> None:
    compare(pair, shape, peak)


@pytest.mark.parametrize("name", ["turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq"])
def test_blocks_of_many_warps(name: str) -> None:
    compare((name, name), (8, 2, 128, 8192, (65, 3), 0, 0.0), 2.0, long=True)
