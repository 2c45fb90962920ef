"""Attention of rows that share segments on the device, against float64 arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from prefill_cases import Shape
from shared_cases import ERROR, STEPS, attention, check

from polykv.fast.cuda.device import problem

GPU = problem()
pytestmark = pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}")

TYPES = ("f16", "q8_0", "q4_0", "q8_0+r", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq")
PAIRS = [*(f"{t}/{t}" for t in TYPES), "q8_0/turbo3", "f16/turbo4", "turbo2/f16", "turbo3_tcq/turbo2_tcq"]
SHAPES = [
    Shape(heads=8, n_kv=2, dim=128),
    Shape(heads=4, dim=64, peak=3.0),
    Shape(heads=6, n_kv=2, dim=96, window=100),
    Shape(heads=16, dim=128, softcap=30.0, peak=3.0),
]


@pytest.mark.parametrize("wgmma", [None, False], ids=["of the device", "warps"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pair", PAIRS)
def test_attention_is_that_of_the_decoded_values(pair: str, shape: Shape, wgmma: bool | None) -> None:
    for step in STEPS:
        check(attention(pair, step, shape, wgmma=wgmma), shape)


@pytest.mark.parametrize("pair", ["f16/q8_0", "q8_0/f16"])
@pytest.mark.parametrize("step", STEPS)
def test_private_cells_are_joined_with_shared_ones(step: str, pair: str) -> None:
    run = attention(pair, step, Shape(heads=4, dim=128), least=17)
    assert run.items > 0 and run.error() < ERROR


@pytest.mark.parametrize("limit", [100, 164])
def test_smaller_devices_lift_fewer_turns(limit: int) -> None:
    shape = Shape(heads=4, dim=128)
    check(attention("turbo4/q4_0", "agents", shape, limit=limit << 10, wgmma=False), shape)


def test_nan_of_a_row_stays_in_that_row() -> None:
    run = attention("q8_0/turbo3", "two", Shape(heads=4, dim=128), bad=np.nan)
    bad = np.arange(len(run.out)) % 7 == 1
    assert np.isnan(run.out[bad, 1]).all()
    assert run.error(~bad) < ERROR
