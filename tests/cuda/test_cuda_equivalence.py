"""The CUDA backend against the reference, with the cases of all backends; where there is a GPU."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
from agreement import worst_error
from case_base import Case, normal, seeded, weight
from cases import CASES
from on_device import DeviceOps

from polykv.fast import cuda
from polykv.fast.cuda.device import problem
from polykv.fast.cuda.weights import FIELDS, FLOATS
from polykv.ops import OPERATIONS, Limits, Ops, load
from polykv.types import WEIGHT_BLOCK, Activations, WeightType

CACHE = "the resident layout of codes on the device comes with the kernels that read it"
# Operations that this backend does not have, and why.
MISSING: dict[str, str] = {
    **dict.fromkeys(("encode", "decode"), CACHE),
    **dict.fromkeys(("kv_alloc", "kv_grow", "kv_append", "kv_read", "kv_pack", "kv_seal", "kv_unpack"), CACHE),
    "attend": "attention on codes is a family of kernels of its own",
    "attention_block": "it is made of attend and kv_append, which are missing",
    "layers": "it is made of attention_block, which is missing",
}
# W rounded to float16 for the tensor cores: half of the last of 11 bits, evenly spread, is 2e-4; x adds as much.
HALF = 1e-3

GPU = problem()
needs_gpu = pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}")


def tolerance(case: Case) -> float:
    """That of the case, but for products of many rows in float16 (`linear`)."""
    rows = re.search(r"-(\d+)x", case.id)
    many = case.op == "linear" and rows is not None and int(rows[1]) > 16 and case.id.endswith("Q8")
    return HALF if many else case.tolerance


@needs_gpu
@pytest.mark.parametrize("case", [c for c in CASES if c.op not in MISSING], ids=str)
def test_twin(case: Case) -> None:
    call: Any = case.prepare(DeviceOps())  # type: ignore[arg-type]
    call()
    # The second result is compared: a call must not depend on what the first one left behind.
    error = worst_error(case.agreement, call(), case.prepare(load("ref"))())
    assert error <= tolerance(case)


@needs_gpu
@pytest.mark.parametrize("kind", FIELDS, ids=lambda k: k.name)
def test_a_row_does_not_depend_on_the_others(kind: WeightType) -> None:
    """Bit for bit, up to the number of rows for which W is read packed."""
    rng = seeded(f"rows-{kind.name}")
    for cols in (768, 800) if WEIGHT_BLOCK[kind][0] == 32 else (768,):
        w, x = weight(rng, kind, 131, cols), normal(rng, 32, cols)
        most = 32 if cols % 128 == 0 else 16
        for mode in Activations if most == 16 else (Activations.Q8,):
            whole = DeviceOps().linear(x[:most], w, activations=mode)
            for first, last in ((0, 1), (3, 6), (7, 15), (0, most - 1)):
                part = DeviceOps().linear(x[first:last], w, activations=mode)
                assert np.array_equal(part.view(np.uint32), whole[first:last].view(np.uint32))


def test_missing_operations_are_named_with_a_reason() -> None:
    assert [op for op in OPERATIONS if not callable(getattr(cuda, op, None))] == [
        op for op in OPERATIONS if op in MISSING
    ]
    assert all(len(reason) > 20 for reason in MISSING.values())


@pytest.mark.parametrize("name", [*(op for op in OPERATIONS if op not in MISSING), "supports_weight"])
def test_signatures_are_those_of_the_protocol(name: str) -> None:
    def shape(fn: Any, drop: int) -> list[tuple[str, Any, Any]]:
        parameters = list(inspect.signature(fn).parameters.values())[drop:]
        return [(p.name, p.kind, p.default) for p in parameters]

    assert shape(getattr(cuda, name), 0) == shape(getattr(Ops if name in OPERATIONS else Limits, name), 1)


def test_all_weight_types_of_files_are_supported() -> None:
    assert {*FIELDS, *FLOATS} == set(WeightType)
    assert all(cuda.supports_weight(kind) is None for kind in WeightType)
