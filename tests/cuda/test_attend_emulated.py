"""Attention in the emulator: every type as K and as V, at every kind of head."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pretend_cupy
import pytest
from agreement import worst_error
from attention import Shape, compare
from cases import of
from on_device import DeviceOps
from test_cuda_equivalence import tolerance

from polykv.fast.cuda.attend import _signs
from polykv.fast.cuda.attend_config import Config
from polykv.fast.cuda.attend_run import _levels
from polykv.fast.cuda.compile import kernel
from polykv.fast.cuda.forms import _form
from polykv.fast.cuda.fwht import _core
from polykv.ops import load
from polykv.types import LayerKV

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels, _signs, _form, _core):
        yield


CASES = (
    ("turbo3_tcq/turbo3_tcq", (4, 1, 128, 192, (5, 64), 0, 0.0)),
    ("turbo2_tcq/turbo2_tcq", (4, 1, 128, 64, (65, 3), 100, 0.0)),
    ("turbo3_tcq/turbo2_tcq", (8, 1, 64, 64, (63, 1), 0, 0.0)),
    ("turbo2_tcq/turbo3_tcq", (6, 2, 96, 64, (7, 9), 0, 30.0)),
    ("turbo3_tcq/turbo3_tcq", (4, 1, 192, 64, (33, 31), 50, 0.0)),
    ("turbo3/turbo3_tcq", (4, 1, 256, 64, (1, 2), 0, 0.0)),
    ("turbo2_tcq/q8_0", (4, 1, 512, 64, (40, 2), 0, 0.0)),
    ("f16/turbo3_tcq", (4, 1, 128, 64, (40, 2), 0, 0.0)),
    ("turbo3_tcq_n/turbo3_tcq", (4, 1, 128, 64, (40, 2), 0, 0.0)),
    ("q8_0/turbo3", (4, 1, 128, 64, (40, 2), 0, 0.0)),
    ("q4_0/turbo4", (8, 1, 512, 64, (40, 2), 20, 0.0)),
    # More turns than there are places for weights (kernels/attend_wide.cu).
    ("turbo2/q4_0", (8, 1, 384, 576, (65, 3), 0, 30.0)),
    ("turbo2/f16", (4, 2, 96, 64, (40, 2), 0, 0.0)),
    ("q5_0/q6_0", (4, 1, 64, 128, (5, 64), 0, 0.0)),
    ("q6_0/q5_0", (8, 1, 64, 64, (5, 64), 50, 0.0)),
    ("q4_1/q5_1", (4, 1, 128, 64, (40, 2), 0, 0.0)),
    ("q5_1/q4_1", (8, 1, 96, 64, (5, 64), 0, 20.0)),
    ("q5_1/q4_1", (4, 1, 256, 64, (40, 2), 0, 0.0)),
    ("iq4_nl/iq4_nl", (4, 1, 64, 64, (40, 2), 0, 0.0)),
    ("turbo8/turbo8", (8, 1, 128, 64, (40, 2), 0, 0.0)),
    ("turbo8/q4_1", (4, 1, 256, 64, (40, 2), 0, 0.0)),
    ("q6_0/turbo8", (4, 1, 512, 64, (40, 2), 0, 0.0)),
    ("bf16/bf16", (4, 1, 64, 64, (5, 64), 0, 0.0)),
    ("turbo8/turbo3_tcq", (4, 1, 64, 64, (5, 64), 0, 0.0)),
    ("turbo2_tcq/bf16", (4, 1, 128, 64, (5, 64), 0, 0.0)),
    # Heads of one step of 32 dims, and four slices of 96.
    ("turbo3/q5_1", (4, 1, 32, 64, (5, 64), 0, 0.0)),
    ("q4_0/turbo2", (4, 1, 32, 64, (5, 64), 0, 0.0)),
    ("turbo3_tcq/turbo2_tcq", (4, 1, 32, 64, (5, 64), 0, 0.0)),
    ("turbo2_tcq/turbo3_tcq", (4, 1, 32, 64, (5, 64), 0, 0.0)),
    ("turbo4/q8_0", (4, 1, 384, 64, (5, 64), 0, 0.0)),
    ("turbo3_tcq/f16", (4, 1, 384, 64, (5, 64), 0, 0.0)),
)


@pytest.mark.parametrize(("pair", "shape"), CASES, ids=str)
def test_attention_is_that_of_the_decoded_values(machine: None, pair: str, shape: Shape) -> None:
    k, v = pair.split("/")
    compare((k, v), shape, 2.0)


# Heads that are filled up, with types of every way to be read.
PICKED = ("q5_1-h9g3-d176", "iq4_nl-h4g1-d100", "turbo8-h4g1-d16", "turbo3_tcq-h9g1-d16", "bf16-h4g4-d72")


@pytest.mark.parametrize("name", PICKED)
def test_cases_of_all_backends(machine: None, name: str) -> None:
    case = next(c for c in of("attend") if c.id == f"decode-{name}-w0-c0")
    ops: Any = DeviceOps()
    assert worst_error(case.agreement, case.prepare(ops)(), case.prepare(load("ref"))()) <= tolerance(case)


@pytest.mark.parametrize("pair", ["turbo3/turbo2", "turbo3_tcq/turbo3_tcq", "turbo2_tcq/turbo2_tcq"])
def test_blocks_of_many_warps(machine: None, pair: str) -> None:
    k, v = pair.split("/")
    compare((k, v), (4, 1, 128, 192, (5, 64), 0, 0.0), 2.0, long=True)


@contextmanager
def while_written(made: Config, layer: LayerKV, written: list[tuple[int, int]]) -> Iterator[None]:
    """New cells, and all of their tiles, arrive when the kernel before has ended."""
    found = []
    for side in (layer.k, layer.v):
        data = side.fields["data"].transpose(1, 0, 2)
        assert data.flags.c_contiguous
        fresh, size = np.array(data), data.shape[2] // 2
        old = fresh.copy()
        for block, tile in written:
            old[:, block, tile * size : (tile + 1) * size] ^= 0x55
        found.append((data, old, fresh))
    with kernel(f"{made.file}.cu", made.file, **made.defines()).function.late(*found):
        yield


@pytest.mark.parametrize(("pair", "shape"), CASES[:8], ids=str)
def test_new_cells_are_waited_for(machine: None, pair: str, shape: Shape) -> None:
    """Attention that begins while they are being written reads those that were there before."""
    k, v = pair.split("/")
    compare((k, v), shape, 2.0, late=while_written)
