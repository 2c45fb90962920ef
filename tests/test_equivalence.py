"""Every fast backend against the reference, case by case; and the rules that make such a comparison worth something."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import worst_cost, worst_error
from case_attention import TIERS
from case_base import HEAD_DIMS, HOSTS, Arrays, Case
from cases import CASES

from polykv.cache.codecs import CODECS, VARIANTS, codec, parse_tier
from polykv.errors import UnsupportedError
from polykv.ops import AGREEMENT, BACKENDS, LIMITS, MEMORY, MODULES, OPERATIONS, Agreement, Limits, Memory, Ops, load

FAST = tuple(b for b in HOSTS if b != "ref")

# (backend, operation) -> why it has no twin.
MISSING: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module")
def worst(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], tuple[float, str]]]:
    """Per backend and operation the case that came closest to its tolerance, printed when all have run."""
    table: dict[tuple[str, str], tuple[float, str]] = defaultdict(lambda: (0.0, "-"))
    yield table
    plugins = request.config.pluginmanager
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        print("\nlargest error of each operation, as a share of what its case allows")
        for (name, op), (share, where) in sorted(table.items()):
            print(f"  {name} {op:15} {AGREEMENT[op].name:5} {share:7.1%}  {where}")


@pytest.fixture(scope="module")
def refused(request: pytest.FixtureRequest) -> Iterator[Counter[tuple[str, str, str]]]:
    """How many cases of an operation a backend refused, by reason; printed when all have run."""
    table: Counter[tuple[str, str, str]] = Counter()
    yield table
    plugins = request.config.pluginmanager
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        print("\ncases that a backend refuses, as it says when asked")
        for (name, op, reason), n in sorted(table.items()):
            print(f"  {name} {op:15} {n:5}  {reason}")


def run(name: str, case: Case) -> Arrays:
    call = case.prepare(load(name))
    call()
    # The second result is compared: a call must not depend on what the first one left behind.
    return call()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_twin(
    name: str,
    case: Case,
    worst: dict[tuple[str, str], tuple[float, str]],
    refused: Counter[tuple[str, str, str]],
) -> None:
    if (name, case.op) in MISSING:
        pytest.skip(MISSING[name, case.op])
    reason = case.refusal(load(name))
    if reason is not None:
        refused[name, case.op, reason] += 1
        with pytest.raises(UnsupportedError, match=re.escape(reason)):
            run(name, case)
        return
    got, want = run(name, case), run("ref", case)
    if case.agreement is Agreement.COST:
        assert case.cost is not None
        assert [g.shape for g in got] == [w.shape for w in want]
        error = worst_cost(case.cost(got), case.cost(want))
    else:
        error = worst_error(case.agreement, got, want)
    share = error / case.tolerance if error else 0.0
    if share >= worst[name, case.op][0]:
        worst[name, case.op] = (share, f"{error:.1e} of {case.tolerance:.0e} in {case.id}")
    assert error <= case.tolerance


def test_every_operation_has_cases_and_a_class() -> None:
    assert {c.op for c in CASES} == set(OPERATIONS) == set(AGREEMENT)


# K/V types that a backend has kernels for, at every head_dim of the cases.
RUNS = {"cpu": {*CODECS, *VARIANTS}}


@pytest.mark.parametrize("name", FAST)
def test_what_a_backend_refuses_is_known(name: str) -> None:
    """A case that is refused tests nothing: no other types and sizes than these may be."""
    known = [*CODECS.values(), *map(codec, VARIANTS)]
    for k in known:
        for v in known:
            for dim in HEAD_DIMS:
                runs = {k.name, v.name} <= RUNS[name]
                assert (load(name).supports_kv(k, v, dim, 64) is None) == runs, (k.name, v.name, dim)
    assert all(case.refusal(load("ref")) is None for case in CASES)


def test_every_codec_is_read_as_k_and_as_v() -> None:
    tiers = [parse_tier(t) for t in TIERS]
    assert {t.k.name for t in tiers} & {t.v.name for t in tiers} >= set(CODECS)


def test_case_ids_are_unique() -> None:
    assert len({str(c) for c in CASES}) == len(CASES)


@pytest.mark.parametrize("name", BACKENDS)
def test_signatures_are_those_of_the_protocol(name: str) -> None:
    def shape(fn: Any, drop: int) -> list[tuple[str, Any, Any]]:
        parameters = list(inspect.signature(fn).parameters.values())[drop:]
        return [(p.name, p.kind, p.default) for p in parameters]

    module = importlib.import_module(MODULES[name])
    lacking = [op for op in OPERATIONS if not callable(getattr(module, op, None))]
    assert lacking == [op for op in OPERATIONS if (name, op) in MISSING]
    for op in OPERATIONS:
        if op not in lacking:
            assert shape(getattr(module, op), 0) == shape(getattr(Ops, op), 1), op
    for protocol, questions in ((Limits, LIMITS), (Memory, MEMORY)):
        for question in questions:
            assert shape(getattr(module, question), 0) == shape(getattr(protocol, question), 1), question


def test_missing_twins_are_named_with_a_reason() -> None:
    for (name, op), reason in MISSING.items():
        assert name in FAST and op in OPERATIONS and len(reason) > 20


def test_cost_cases_say_what_their_cost_is() -> None:
    assert all((c.cost is not None) == (c.agreement is Agreement.COST) for c in CASES)


# The first case of each operation and of each tolerance that its cases allow.
TOLERANCES = {(c.op, c.tolerance): c for c in reversed(CASES)}


@pytest.mark.parametrize("case", TOLERANCES.values(), ids=str)
def test_a_wrong_result_is_noticed(case: Case) -> None:
    """The suite itself: a small change of one value must exceed what the case allows."""
    want = run("ref", case)
    wrong = tuple(damaged(a) for a in want)
    if case.agreement is Agreement.COST:
        assert case.cost is not None
        assert worst_cost(case.cost(wrong), case.cost(want)) > case.tolerance
    else:
        assert worst_error(case.agreement, wrong, want) > case.tolerance


def damaged(a: np.ndarray) -> np.ndarray:
    """A copy with one value changed a little."""
    b = a.copy()
    if b.size == 0:
        return b
    flat = b.reshape(-1)
    # Not the first bytes of the vector in the middle: those are the low bits of a scale, which say next to nothing. Two
    # bits of a byte: the lowest of eight alone says not much more.
    middle = max(b.size // 2 - 2, 0)
    at = int(np.argmax(np.abs(np.where(np.isfinite(flat), flat, 0)))) if b.dtype.kind == "f" else middle
    flat[at] = flat[at] * 1.5 if b.dtype.kind == "f" else flat[at] ^ 0x11
    return b
