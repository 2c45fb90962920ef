"""Attention of many rows on the device, against float64 arithmetic and against attention of a few rows."""

from __future__ import annotations

import numpy as np
import pytest
from case_attention import Plan, Seq
from prefill_cases import EMPTY, PLANS, Shape, attention

from polykv.fast.cuda.device import problem

GPU = problem()
pytestmark = pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}")

TYPES = (
    "f16",
    "bf16",
    "q8_0",
    "q6_0",
    "q5_1",
    "q5_0",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "turbo8",
    "q8_0+r",
    "q4_0+r",
    "turbo4",
    "turbo3",
    "turbo2",
    "turbo3_tcq",
    "turbo2_tcq",
)
PAIRS = [*(f"{t}/{t}" for t in TYPES), "q8_0/turbo3", "f16/turbo4", "turbo2/f16", "q4_0/turbo3"]
SHAPES = [
    Shape(heads=8, n_kv=2, dim=128),
    Shape(heads=4, n_kv=4, dim=64, peak=3.0),
    Shape(heads=6, n_kv=2, dim=96, window=100),
    Shape(heads=16, n_kv=1, dim=128, softcap=30.0, peak=3.0),
    Shape(heads=4, n_kv=2, dim=256, window=70),
    Shape(heads=4, n_kv=1, dim=512),
    Shape(heads=3, n_kv=1, dim=192, softcap=5.0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pair", PAIRS)
def test_attention_is_that_of_the_decoded_values(pair: str, shape: Shape) -> None:
    for name, plan in PLANS.items():
        segments, _, blocks = plan.build(name)
        attention(pair, segments, blocks, shape).check()


@pytest.mark.parametrize("dim", [64, 128, 256, 512])
@pytest.mark.parametrize("pair", ["f16/f16", "turbo3/turbo3"])
def test_a_prompt_of_a_thousand_rows(pair: str, dim: int) -> None:
    segments, _, blocks = Plan((Seq(3000, 1000),), size=256).build("thousand")
    attention(pair, segments, blocks, Shape(heads=4, n_kv=2, dim=dim), size=256).check()


@pytest.mark.parametrize("room", [1, 3])
def test_rounds_of_lifting(room: int) -> None:
    segments, _, blocks = PLANS["shared"].build("shared")
    found = attention("turbo3/q8_0", segments, blocks, Shape(heads=8, n_kv=2, dim=128), room=room)
    assert len(found.plan.rounds) > 2 and found.plan.parts > 0
    found.check()


@pytest.mark.parametrize("limit", [100, 164])
@pytest.mark.parametrize("dim", [64, 128, 256, 512])
def test_configurations_of_smaller_devices(dim: int, limit: int) -> None:
    segments, _, blocks = PLANS["1000"].build("1000")
    attention("turbo4/f16", segments, blocks, Shape(heads=4, n_kv=2, dim=dim), limit=limit << 10).check()


def test_rows_that_see_nothing_and_rows_of_nan() -> None:
    attention("turbo4/turbo3", EMPTY, 3, Shape(heads=2)).check()
    segments, _, blocks = PLANS["ragged"].build("ragged")
    found = attention("q8_0/turbo3", segments, blocks, Shape(heads=4), bad=np.nan)
    bad = np.arange(len(segments.positions)) % 7 == 1
    assert np.isnan(found.out[bad, 1]).all() and np.isnan(found.lse[bad, 1]).all()
    found.check(np.flatnonzero(~bad).tolist())
