"""The CUDA backend against the reference, with the cases of all backends; where there is a GPU."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest
from agreement import OTHER_PATHS, worst_cost, worst_error
from case_base import HEAD_DIMS, Arrays, Case, normal, seeded, weight
from case_centered import BLOCKS64
from cases import CASES
from on_device import DeviceOps

from polykv.cache.codecs import CODECS, VARIANTS, codec
from polykv.errors import UnsupportedError
from polykv.fast import cuda
from polykv.fast.cuda.attend import MANY
from polykv.fast.cuda.device import problem
from polykv.fast.cuda.weights import FIELDS, FLOATS
from polykv.ops import OPERATIONS, Agreement, Limits, Ops, load
from polykv.types import WEIGHT_BLOCK, Activations, Family, WeightType

# Operations that this backend does not have, and why.
MISSING: dict[str, str] = {}
# W rounded to float16 for the tensor cores: half of the last of 11 bits, evenly spread, is 2e-4; x adds as much.
HALF = 1e-3

GPU = problem()
needs_gpu = pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}")


# Attention: levels are rounded to signed bytes, which moves a value by up to 0.35 % of its RMS, and K and V add up;
# those of trellis types by 0.6 % on the average, and in cases of few cells it shows. Queries are rounded to 15 bits.
LEVELS, STATES, QUERIES = 8e-3, 2e-2, 1e-3
# Of a block as well, which has products before and after; they round W and rows.
BLOCK = 1e-2


def tolerance(case: Case) -> float:
    """That of the case, but for products of many rows in float16 (`linear`), and for attention."""
    if case.op in ("attend", "attention_block") and case.storage is not None:
        k, v, *_ = case.storage
        if Family.TRELLIS in (k.family, v.family):
            return STATES
        if any(c.unit_norm and c.bits < 8 for c in (k, v)):
            return BLOCK + case.tolerance if case.op == "attention_block" else LEVELS
        if case.op == "attention_block":
            # Of 63 rows products and attention multiply halves.
            return case.tolerance + (HALF if "-prefill-" in case.id else 0.0)
        if many_queries(case):
            return max(HALF, case.tolerance)
        if case.id.startswith("large-scores") and k.family == Family.BF16:
            # Queries are two bfloat16s, of 16 bits.
            return STATES
        return case.tolerance if k.family == v.family == Family.F16 else max(QUERIES, case.tolerance)
    if case.agreement is Agreement.COST and case.storage is not None and case.storage[0].family == Family.TRELLIS:
        return OTHER_PATHS
    if case.op == "layers":
        # Four layers, of which each rounds once more.
        return 4 * HALF
    rows = re.search(r"-(\d+)x", case.id)
    many = case.op == "linear" and rows is not None and int(rows[1]) > 16 and case.id.endswith("Q8")
    return HALF if many else case.tolerance


def many_queries(case: Case) -> bool:
    """Whether attention is that of many rows, which multiplies halves."""
    found = re.fullmatch(r"([a-z0-9-]+?)-.*-h(\d+)g(\d+)-d.*", case.id)
    rows = {"prefill": 63, "chunk": 63, "ragged": 64, "nan": 64, "agents": 31, "shipped-blocks": 31, "staged": 70}
    return found is not None and rows.get(found[1], 0) * int(found[2]) // int(found[3]) >= MANY


def set_apart(case: Case) -> str | None:
    """Why a case cannot agree with `ref`: none of these is a matter of tolerance."""
    if (case.op == "kv_seal" or case.id.startswith("staged")) and not case.id.endswith(BLOCKS64):
        return "exact cells lie in blocks of 64"
    if case.op == "greedy" and case.id.endswith("-tiny"):
        return "denormal float32 numbers are zero on the device, so nothing is left of such states"
    if case.op == "attend" and case.id.startswith("large-scores") and case.storage and case.storage[0].unit_norm:
        return "with scores in thousands the rounding of levels to bytes decides which key wins"
    return None


# Thousands of them, so without a GPU one stands for all.
HERE = [c for c in CASES if c.op not in MISSING and set_apart(c) is None]


@needs_gpu
@pytest.mark.parametrize("case", HERE if GPU is None else HERE[:1], ids=str)
def test_twin(case: Case) -> None:
    reason = case.refusal(DeviceOps())  # type: ignore[arg-type]
    if reason is not None:
        with pytest.raises(UnsupportedError, match=re.escape(reason)):
            run(case)
        return
    got, want = run(case), case.prepare(load("ref"))()
    if case.agreement is Agreement.COST:
        assert case.cost is not None
        assert [g.shape for g in got] == [w.shape for w in want]
        assert worst_cost(case.cost(got), case.cost(want)) <= tolerance(case)
    else:
        assert worst_error(case.agreement, got, want) <= tolerance(case)


def run(case: Case) -> Arrays:
    call: Any = case.prepare(DeviceOps())  # type: ignore[arg-type]
    call()
    # The second result is compared: a call must not depend on what the first one left behind.
    result: Arrays = call()
    return result


@needs_gpu
@pytest.mark.parametrize("kind", FIELDS, ids=lambda k: k.name)
def test_a_row_does_not_depend_on_the_others(kind: WeightType) -> None:
    """Bit for bit, from two rows up to the number for which W is read packed."""
    rng = seeded(f"rows-{kind.name}")
    for cols in (768, 800) if WEIGHT_BLOCK[kind][0] == 32 else (768,):
        w, x = weight(rng, kind, 131, cols), normal(rng, 32, cols)
        most = 32 if cols % 128 == 0 else 16
        for mode in Activations if most == 16 else (Activations.Q8,):
            whole = DeviceOps().linear(x[:most], w, activations=mode)
            for first, last in ((0, 2), (3, 6), (7, 15), (0, most - 1)):
                part = DeviceOps().linear(x[first:last], w, activations=mode)
                assert np.array_equal(part.view(np.uint32), whole[first:last].view(np.uint32))
            # The products of a single row are the same integers, added up in another order.
            single = DeviceOps().linear(x[5:6], w, activations=mode)
            assert np.abs(single - whole[5:6]).max() <= 2e-6 * np.abs(whole[5:6]).max()


def test_missing_operations_are_named_with_a_reason() -> None:
    assert [op for op in OPERATIONS if not callable(getattr(cuda, op, None))] == [
        op for op in OPERATIONS if op in MISSING
    ]
    assert all(len(reason) > 20 for reason in MISSING.values())


@pytest.mark.parametrize("name", [*(op for op in OPERATIONS if op not in MISSING), "supports_weight", "supports_kv"])
def test_signatures_are_those_of_the_protocol(name: str) -> None:
    def shape(fn: Any, drop: int) -> list[tuple[str, Any, Any]]:
        parameters = list(inspect.signature(fn).parameters.values())[drop:]
        return [(p.name, p.kind, p.default) for p in parameters]

    assert shape(getattr(cuda, name), 0) == shape(getattr(Ops if name in OPERATIONS else Limits, name), 1)


def test_all_weight_types_of_files_are_supported() -> None:
    assert {*FIELDS, *FLOATS} == set(WeightType)
    assert all(cuda.supports_weight(kind) is None for kind in WeightType)


# Head_dims at which some types do not lie in slices: longer heads, and paths of 2 bits in several parts.
LONG, PARTS = {576}, {320}


def test_what_is_refused_is_known() -> None:
    """A case that is refused tests nothing: no other types and sizes than these may be."""
    for c in (*CODECS.values(), *map(codec, VARIANTS)):
        for dim in HEAD_DIMS:
            paths = c.family == Family.TRELLIS and c.bits == 2
            runs = c.family != Family.F32 and dim not in LONG and not (paths and dim in PARTS)
            assert (cuda.supports_kv(c, codec("f16"), dim, 64) is None) == runs, (c.name, dim)
            assert (cuda.supports_kv(codec("f16"), c, dim, 64) is None) == runs
    assert cuda.supports_kv(codec("q8_0"), codec("turbo3"), 128, 32) == (
        "the cuda backend needs a block size that is a power of two from 64 on"
    )
