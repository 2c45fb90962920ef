"""Attention of rows that share segments, in the emulator: every type, products of warpgroups and of warps."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pretend_cupy
import pytest
import shared_cases
from prefill_cases import Shape, arena
from shared_cases import ERROR, STEPS, attention, check

from polykv.cache.codecs import codec
from polykv.fast.cuda.attend_run import _levels
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.lift import levels_of
from polykv.fast.cuda.shared_config import TYPES, shared_config
from polykv.types import Codec

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module", autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels, levels_of):
        yield


CASES = [
    ("two", "q8_0/turbo3", Shape(heads=4, dim=128)),
    ("two", "f16/f16", Shape(heads=5, window=100)),
    ("agents", "turbo3/q8_0", Shape(heads=8, n_kv=2)),
    ("agents", "turbo2/q4_0", Shape(heads=4, dim=96, softcap=5.0, peak=3.0)),
    ("agents", "q4_0/turbo4", Shape(heads=16)),
    ("verify", "turbo4/f16", Shape(heads=4, window=70)),
    ("verify", "turbo3_tcq/turbo2_tcq", Shape(heads=4, dim=128)),
    ("verify", "turbo2_tcq/turbo2_tcq", Shape(heads=2)),
    ("agents", "f16/turbo3_tcq", Shape(heads=3, dim=96)),
    ("verify", "turbo4/turbo2", Shape(heads=7)),
]


# Products of warpgroups and of warps in turns; how codes become operands is the same for both.
@pytest.mark.parametrize(("wgmma", "case"), [(i % 2 == 0, case) for i, case in enumerate(CASES)], ids=str)
def test_attention_is_that_of_the_decoded_values(wgmma: bool, case: tuple[str, str, Shape]) -> None:
    step, pair, shape = case
    check(attention(pair, step, shape, wgmma=wgmma), shape)


def test_both_products_are_those_of_the_decoded_values() -> None:
    """Some rows see nothing of the first turns of an item, and have no reference when they come to what they see."""
    shape = Shape(heads=4, window=100)
    for wgmma in (True, False):
        check(attention("turbo3/q4_0", "two", shape, wgmma=wgmma), shape)


@pytest.mark.parametrize("pair", ["f16/q8_0", "q8_0/f16"])
@pytest.mark.parametrize("step", STEPS)
def test_private_cells_are_joined_with_shared_ones(step: str, pair: str) -> None:
    """A few queries are read as codes, many are lifted."""
    run = attention(pair, step, Shape(heads=4), least=17)
    assert run.items > 0 and run.error() < ERROR


def test_smaller_devices_lift_fewer_turns() -> None:
    shape = Shape(heads=4, dim=128)
    check(attention("q8_0/q4_0", "agents", shape, limit=130 << 10, wgmma=False), shape)


def test_every_crew_has_stages_of_its_own() -> None:
    """Else warps of two crews might meet at the barrier of one, and wait for ever."""
    for wgmma, k in itertools.product((True, False), map(kind_of, map(codec, TYPES))):
        made = shared_config(k, k, 128, softcap=False, limit=228 << 10, one_table=k.path, wgmma=wgmma)
        assert made is not None and made.stages % made.crews == 0, (wgmma, k)


def test_nan_of_a_row_stays_in_that_row() -> None:
    run = attention("q8_0/turbo3", "two", Shape(heads=4), bad=np.nan)
    bad = np.arange(len(run.out)) % 7 == 1
    assert np.isnan(run.out[bad, 1]).all()
    assert run.error(~bad) < ERROR


def test_queries_of_almost_nothing_are_nothing() -> None:
    """What makes the largest dim 1024 would be infinite. Rows of shared cells, and of their own."""
    run = attention("f16/turbo2", "verify", Shape(heads=1, peak=1e-37), least=17)
    assert run.items > 0 and run.error() < ERROR


def test_values_that_no_half_holds_are_the_largest_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales of either sign, some of them so large that a code times them would be infinite."""

    def larger(of: Codec, shape: Shape, *rest: Any) -> Any:
        made, values = arena(of, shape, *rest)
        if of.name == "q4_0":
            # Tiles of 16 bytes of codes for a dim, and of two of scales.
            scales = made.fields["data"].reshape(-1, 18 * shape.dim)[:, 16 * shape.dim :].view(np.float16)
            scales *= np.float16(30000)
            assert np.abs(scales).max() > 8188
            values = 30000 * values
        return made, values

    monkeypatch.setattr(shared_cases, "arena", larger)
    assert attention("f16/q4_0", "verify", Shape(heads=1)).error() < 1e-2
