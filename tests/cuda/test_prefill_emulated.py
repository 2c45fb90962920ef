"""Attention of many rows in the emulator: launchers and kernels as they are, without a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pretend_cupy
import pytest
from prefill_cases import EMPTY, ERROR, PLANS, Shape, attention

from polykv.fast.cuda.lift import levels_of as _levels
from polykv.fast.cuda.prefill_config import config
from polykv.types import Segments

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module", autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels):
        yield


CASES = [
    ("one", "f16/f16", Shape()),
    ("63", "q8_0/turbo3", Shape(heads=3)),
    ("63", "turbo4/q4_0", Shape(dim=128, window=40)),
    ("chunk", "turbo3/turbo2", Shape(heads=2, dim=96)),
    ("1000", "q4_0/f16", Shape(heads=2, softcap=5.0, peak=3.0)),
    ("shared", "turbo2/turbo4", Shape(heads=4, n_kv=2)),
    ("ragged", "f16/q8_0", Shape(window=100)),
    ("63", "turbo3/turbo3", Shape(heads=2, dim=192)),
    ("63", "q8_0/f16", Shape(heads=1, dim=256, window=30)),
    ("63", "f16/turbo3", Shape(heads=1, dim=512)),
    ("63", "turbo3_tcq/turbo2_tcq", Shape(heads=2, dim=128)),
    ("63", "turbo2_tcq/turbo3_tcq", Shape(heads=2, dim=96)),
    ("63", "turbo3_tcq/turbo3_tcq", Shape(heads=2, dim=64)),
    ("63", "turbo2_tcq_n/f16", Shape(heads=1, dim=256)),
    ("63", "q5_0/q6_0", Shape(heads=2)),
    ("63", "q6_0/q5_0", Shape(heads=2, dim=128)),
    ("63", "q4_1/q5_1", Shape(heads=2, dim=96)),
    ("63", "q5_1/q4_1", Shape(heads=2, dim=32)),
    ("63", "iq4_nl/turbo8", Shape(heads=2)),
    ("63", "turbo8/iq4_nl", Shape(heads=2, dim=32)),
    ("63", "bf16/turbo3_tcq", Shape(heads=2, dim=32)),
    ("63", "turbo2_tcq/bf16", Shape(heads=1, dim=384)),
]


@pytest.mark.parametrize(("plan", "pair", "shape"), CASES, ids=str)
def test_attention_is_that_of_the_decoded_values(plan: str, pair: str, shape: Shape) -> None:
    segments, _, blocks = PLANS[plan].build(plan)
    attention(pair, segments, blocks, shape).check()


# Bytes of shared memory of a multiprocessor: Ampere's, and of cards for games.
@pytest.mark.parametrize(
    ("dim", "limit", "cells"), [(512, 164, 32), (64, 100, 64), (256, 164, 64), (256, 100, 32), (512, 100, 32)]
)
def test_devices_with_less_shared_memory(dim: int, limit: int, cells: int) -> None:
    assert config(dim, softcap=False, limit=limit << 10).cells == cells
    segments, _, blocks = PLANS["63"].build("63")
    attention("turbo3/f16", segments, blocks, Shape(heads=1, dim=dim), limit=limit << 10).check()


@pytest.mark.parametrize("room", [1, 2, 5])
def test_rounds_of_lifting_and_parts_of_a_row_make_one_result(room: int) -> None:
    """Codes of so many blocks at a time; the cells of a tile are cut into several items too."""
    segments, _, blocks = PLANS["shared"].build("shared")
    found = attention("turbo3/q8_0", segments, blocks, Shape(heads=2, n_kv=2), room=room)
    assert len(found.plan.rounds) > 2 and found.plan.parts > 0
    found.check()


def test_rows_that_see_nothing_are_zero() -> None:
    for pair in ("f16/f16", "turbo4/turbo3"):
        found = attention(pair, EMPTY, 3, Shape(heads=2))
        assert np.isneginf(found.want_lse[1:]).all() and np.isfinite(found.want_lse[0]).all()
        found.check()


def test_no_rows_are_no_work() -> None:
    found = attention("f16/f16", Segments.of([], np.zeros(0, np.int32)), 1, Shape(heads=2))
    assert found.out.shape == (0, 2, 64) and found.plan.rounds == [0, 0]


def test_a_row_of_nan_says_so_and_its_neighbours_are_as_ever() -> None:
    segments, _, blocks = PLANS["ragged"].build("ragged")
    found = attention("q8_0/turbo3", segments, blocks, Shape(heads=2), bad=np.nan)
    bad = np.arange(len(segments.positions)) % 7 == 1
    assert np.isnan(found.out[bad, 1]).all() and np.isnan(found.lse[bad, 1]).all()
    found.check(np.flatnonzero(~bad).tolist())


def test_queries_of_any_size_are_halves() -> None:
    """Scaled for each row: values of 1e6 do not overflow, those of 1e-30 do not vanish; 1e-37 is as good as 0."""
    segments, _, blocks = PLANS["63"].build("63")
    for peak in (1e-30, 1e-37):
        attention("f16/f16", segments, blocks, Shape(heads=1, peak=peak)).check()
    found = attention("f16/f16", segments, blocks, Shape(heads=1, peak=1e6))
    assert np.isfinite(found.out).all() and np.median(np.abs(found.lse / found.want_lse - 1)) < ERROR
