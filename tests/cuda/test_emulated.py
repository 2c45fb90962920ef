"""The backend's launchers and kernels on the host, in the emulator, with the cases of all backends.

Slow, so one or two cases of every operation and way through it; all cases run where there is a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pretend_cupy
import pytest
from agreement import worst_cost, worst_error
from case_base import normal, seeded, weight
from cases import CASES
from on_device import DeviceOps
from test_cuda_equivalence import MISSING, tolerance

from polykv.fast.cuda.fwht import _core
from polykv.fast.cuda.linear_int8 import TILE_ROWS, tile_rows
from polykv.fast.cuda.weights import FIELDS
from polykv.ops import OPERATIONS, load
from polykv.types import Activations, WeightType

BY_NAME = {str(c): c for c in CASES}
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _core):
        yield


PICKED = (
    *("rms_norm-63x640-scale1", "rope-7x9x16-rot16-half", "rope-63x4x80-rot32-interleaved"),
    *("glu-SILU-63x2048-scale3", "glu-GELU_TANH-3x33-scale10000"),
    *(
        "fwht-g64-3-scale1-forward",
        "fwht-g512-3-scale1-inverse",
        "fwht-g20-3-scale1-inverse",
        "fwht-g72-3-scale1-forward",
    ),
    *("merge-5-7", "merge-2-63", "penalize-5x1000", "sample-1x50"),
    *("dequantize-Q4_0-63x96-pick5", "dequantize-Q6_K-7x768", "dequantize-F16-63x63-pick5", "embed-Q5_K-768"),
    *(f"linear-{kind.name}-9x33x768-Q8" for kind in FIELDS),
    *("linear-Q4_1-3x65x96-Q8", "linear-Q8_0-1x65x96-Q8", "linear-Q3_K-3x65x768-F32", "linear-Q5_0-63x65x96-Q8"),
    "linear-Q6_K-0x5x256-Q8",
    *("linear-BF16-3x65x63-Q8", "linear-F16-3x65x640-F32", "linear-Q4_0-63x65x96-F32", "linear-F32-63x65x63-Q8"),
    *("mlp_block-kquant-1-Q8", "head-kquant-1x320-Q8", "greedy-Q8_0-7x32-2-normal", "prepare_head-9x64"),
)


@pytest.mark.parametrize("name", PICKED)
def test_twin(machine: None, name: str) -> None:
    case = BY_NAME[name]
    ops: Any = DeviceOps()
    error = worst_error(case.agreement, case.prepare(ops)(), case.prepare(load("ref"))())
    assert error <= tolerance(case)


@pytest.mark.parametrize("name", ["kv_append-turbo3_tcq-normal-5x1x64", "encode-turbo2_tcq-normal-5x128"])
def test_a_warp_finds_paths(machine: None, name: str) -> None:
    case, ops = BY_NAME[name], DeviceOps()
    assert case.cost is not None
    got, want = case.prepare(ops)(), case.prepare(load("ref"))()  # type: ignore[arg-type]
    assert worst_cost(case.cost(got), case.cost(want)) <= tolerance(case)


@pytest.mark.parametrize("kind", [WeightType.Q4_0, WeightType.Q6_K], ids=lambda k: k.name)
def test_a_row_does_not_depend_on_the_others(machine: None, kind: WeightType) -> None:
    rng = seeded(f"rows-{kind.name}")
    w, x = weight(rng, kind, 17, 512), normal(rng, 20, 512)
    linear = DeviceOps().linear
    whole = linear(x, w, activations=Activations.Q8)
    for first, last in ((0, 2), (3, 6), (7, 19)):
        part = linear(x[first:last], w, activations=Activations.Q8)
        assert np.array_equal(part.view(np.uint32), whole[first:last].view(np.uint32))
    # The products of a single row are the same integers, added up in another order.
    assert np.abs(linear(x[5:6], w, activations=Activations.Q8) - whole[5:6]).max() <= 2e-6 * np.abs(whole).max()


def test_tiles_of_x_end_with_its_rows() -> None:
    """A kernel for more chunks of 8 rows than there are would read what lies behind them."""
    for n in range(1, TILE_ROWS[-1] + 1):
        rows = tile_rows(n)
        assert rows in TILE_ROWS and -(-rows // 8) == -(-n // 8) and (n == 1 or rows > 1)
    with pytest.raises(ValueError, match="33 rows of x"):
        tile_rows(TILE_ROWS[-1] + 1)


# Their kernels are instructions (asynchronous copies, movmatrix, prmt), or are compared function by function
# (test_kv_host.py), or have tests of their own (test_layers_emulated.py); on a device all cases run.
ELSEWHERE = {
    *("attend", "attention_block", "layers", "encode", "decode"),
    *("kv_alloc", "kv_grow", "kv_append", "kv_read", "kv_pack", "kv_unpack", "kv_seal"),
}


def test_every_operation_is_picked() -> None:
    assert {BY_NAME[name].op for name in PICKED} == set(OPERATIONS) - set(MISSING) - ELSEWHERE
