"""Cells that are exact first, in the emulator: units that become codes, attention over both kinds, centered keys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pretend_cupy
import pytest
from agreement import worst_cost, worst_error
from case_base import Case, normal, seeded
from case_centered import attend, cells_of, plan
from case_model import Shape, angles_of, attention_weights, mlp_weights
from cases import CASES
from on_device import DeviceOps
from test_cuda_equivalence import HALF, tolerance

from polykv.fast import cuda
from polykv.fast.cuda import attend_run, lift
from polykv.fast.cuda.arrays import asarray, asnumpy
from polykv.fast.cuda.attend import _signs
from polykv.fast.cuda.forms import _form
from polykv.fast.cuda.fwht import _core
from polykv.fast.cuda.layers import prepared
from polykv.ops import Agreement, load
from polykv.types import UNIT, Activations, Layer, Stack, WeightType

BY_NAME = {str(c): c for c in CASES}
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    tables = attend_run._levels, lift.levels_of, _signs, _form, _core
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), *tables):
        yield


PICKED = (
    *(f"kv_seal-{name}-2x72-blocks64" for name in ("turbo3+c", "q4_0+r+c", "f16+c", "turbo3")),
    *("kv_seal-turbo2_tcq+c-3x64-blocks64", "kv_seal-turbo4+c-1x256-blocks64", "kv_seal-q8_0-3x64-from-q8_0-blocks64"),
    *(f"kv_pack-means-{name}-2x72" for name in ("turbo3+c", "q8_0+c", "turbo2_tcq+c")),
    *("kv_pack-means-f16+c-1x256", "kv_pack-means-turbo3-3x64"),
)
# Rows that read codes of two units and exact cells of a third; and rows that are many, of two units.
FEW, MANY = (150, 3), (100, 60)
ATTENDED = (
    attend("turbo3+c/turbo3", (2, 1), 64, size=UNIT, span=FEW),
    attend("q8_0+c/q4_0", (8, 1), 256, window=100, size=UNIT, span=FEW),
    attend("q4_0+r+c/q8_0+r", (2, 2), 72, softcap=20.0, size=UNIT, span=FEW),
    attend("turbo4+c/turbo2_tcq", (2, 1), 80, size=UNIT, span=FEW),
    attend("turbo2_tcq+c/f16", (2, 1), 128, size=UNIT, span=FEW),
    attend("turbo3_tcq+c/turbo3_tcq", (2, 1), 96, window=70, size=UNIT, span=FEW),
    attend("f16+c/f16", (2, 1), 64, size=UNIT, span=FEW),
    attend("f16/f16", (2, 1), 64, size=UNIT, span=FEW),
    attend("turbo3+c/turbo3", (4, 1), 64, window=50, size=UNIT, span=MANY),
    attend("turbo2_tcq+c/q8_0", (4, 1), 96, size=UNIT, span=MANY),
    attend("f16+c/turbo4", (4, 1), 72, size=UNIT, span=MANY),
    attend("q8_0/q8_0", (4, 1), 64, softcap=20.0, size=UNIT, span=MANY),
)


@pytest.mark.parametrize("case", [*map(BY_NAME.get, PICKED), *ATTENDED], ids=str)
def test_twin(machine: None, case: Case) -> None:
    ops: Any = DeviceOps()
    call = case.prepare(ops)
    call()
    # The second result is compared: a call must not depend on what the first one left behind.
    got, want = call(), case.prepare(load("ref"))()
    if case.agreement is Agreement.COST:
        assert case.cost is not None
        assert worst_cost(case.cost(got), case.cost(want)) <= tolerance(case)
    else:
        assert worst_error(case.agreement, got, want) <= max(tolerance(case), HALF)


def stack_of(ops: Any, shape: Shape, tier: str, n_coded: int, n_exact: int) -> Stack:
    kv = cells_of(ops, tier, n_coded, n_exact, shape.n_kv, shape.head_dim, UNIT)
    return Stack((Layer(attention_weights(shape), mlp_weights(shape), kv, 0, 0),))


SMALL = Shape("small", 128, 4, 2, 64, 256, False, (WeightType.Q4_0, WeightType.Q8_0))


ODD = replace(SMALL, name="odd", head_dim=72, window=100)
# Rows that complete a unit, and rows that do not; every shape and type with both.
STEPS = [
    *((SMALL, "f16/f16", (126, 2)), (ODD, "f16/f16", (130, 1))),
    *((ODD, "turbo3+c/turbo3", (190, 5)), (SMALL, "turbo3+c/turbo3", (130, 1))),
    *((SMALL, "q8_0+c/q4_0+r", (190, 5)), (ODD, "q8_0+c/q4_0+r", (126, 2))),
]


@pytest.mark.parametrize(("shape", "tier", "span"), STEPS, ids=lambda x: x.name if isinstance(x, Shape) else str(x))
def test_few_rows(machine: None, shape: Shape, tier: str, span: tuple[int, int]) -> None:
    """As kernels of a graph."""
    segments, slots, n_coded, n_exact = plan(seeded("few"), *span, UNIT)
    h0 = normal(seeded(shape.name), span[1], shape.embd)
    step = [angles_of(segments.positions, shape)], [segments], [slots]
    want, stack = h0.copy(), stack_of(load("ref"), shape, tier, n_coded, n_exact)
    load("ref").layers(want, stack, *step, activations=Activations.Q8)
    got, stack = asarray(h0), stack_of(DeviceOps(), shape, tier, n_coded, n_exact)
    cuda.layers(got, stack, *step, activations=Activations.Q8)
    assert prepared(stack).graphs.counters == {"eager": 1}
    error = (asnumpy(got) - want).astype(np.float64)
    allowed = 3e-3 if tier == "f16/f16" else 2e-2
    assert np.sqrt((error**2).mean() / ((want - h0).astype(np.float64) ** 2).mean()) <= allowed
