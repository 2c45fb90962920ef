"""The runner on tiny models: golden logits, and what may not change them (splits, batches, sharing, failures)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    BACKENDS,
    NAMES,
    WEIGHTS,
    assert_same,
    one_shot,
    random_ids,
    tiny_golden,
    tiny_model,
    tiny_runner,
)

from polykv.cache.sequence import Sequence
from polykv.errors import CapacityError, ConfigError, PolyKVError, PromptError
from polykv.model.choice import check_finite, total
from polykv.model.runner import Logits, Runner
from polykv.ref import composites
from polykv.types import Activations

# With a quantized cache, ref's rounding of sums may flip a code between two runs; only cpu promises equal bits there.
STORED = (("ref", "f32"), ("cpu", "f32"), ("cpu", "q8_0/turbo3"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", NAMES)
def test_golden_logits_and_greedy_continuation(name: str, weights: str, backend: str) -> None:
    golden, runner = tiny_golden(name), tiny_runner(name, backend, weights=weights)
    suffix = "" if weights == "f16" else f"_{weights}"
    sequence = Sequence(runner.pool)
    logits = runner.step([(sequence, golden["ids"].tolist())], Logits.ALL)
    assert np.abs(logits - golden["logits" + suffix]).max() < 5e-4
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < 24:
        tokens.append(int(runner.step([(sequence, [tokens[-1]])])[0].argmax()))
    assert tokens == golden["greedy" + suffix].tolist()


@pytest.mark.parametrize(("backend", "kv"), STORED)
@pytest.mark.parametrize("name", ("llama", "gemma3"))
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, 149), max_size=6))
def test_prefill_in_any_split_is_one_shot(name: str, kv: str, backend: str, cuts: set[int]) -> None:
    runner, ids = tiny_runner(name, backend, kv), random_ids(150)
    edges = [0, *sorted(cuts), 150]
    sequence = Sequence(runner.pool)
    parts = [runner.step([(sequence, ids[a:b])], Logits.ALL) for a, b in pairwise(edges)]
    # A pool of its own, so that nothing of the first run can be reused.
    assert_same(backend, np.concatenate(parts), one_shot(tiny_runner(name, backend, kv), ids))


@pytest.mark.parametrize(("backend", "kv"), STORED)
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_the_company_in_a_batch_changes_nothing(name: str, backend: str, kv: str) -> None:
    runner = tiny_runner(name, backend, kv)
    prompts = [random_ids(n, seed=n) for n in (1, 63, 130)]
    alone = [one_shot(runner, p)[-1] for p in prompts]
    together = runner.step([(Sequence(runner.pool), p) for p in prompts], Logits.LAST)
    assert_same(backend, together, np.stack(alone))


@pytest.mark.parametrize(("backend", "kv"), STORED)
@pytest.mark.parametrize("n", (1, 63, 64, 65, 127, 128, 129, 200))
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_a_prefix_hit_gives_the_logits_of_a_miss(name: str, n: int, backend: str, kv: str) -> None:
    runner, ids = tiny_runner(name, backend, kv), random_ids(200)
    miss = one_shot(runner, ids[:n])[-1:]
    hit, reused = Sequence.attach(runner.pool, ids[:n])
    assert reused == (n - 1) // 64 * 64
    assert_same(backend, runner.step([(hit, ids[reused:n])]), miss)


@pytest.mark.parametrize(("backend", "kv"), STORED)
@pytest.mark.parametrize("prefix", (64, 100))
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_forks_share_blocks_and_equal_separate_runs(name: str, prefix: int, backend: str, kv: str) -> None:
    runner, document = tiny_runner(name, backend, kv), random_ids(prefix)
    suffixes = [random_ids(n, seed=n) for n in (3, 40, 70)]
    control = tiny_runner(name, backend, kv)
    want = np.concatenate([one_shot(control, document + s)[-1:] for s in suffixes])

    parent = Sequence(runner.pool)
    runner.step([(parent, document)])
    forks = [parent.fork() for _ in suffixes]
    assert_same(backend, runner.step(list(zip(forks, suffixes, strict=True))), want)
    assert runner.pool.counters["shared_segments"] >= 1
    copied = sum(m.counters["cow"] for m in runner.pool.managers)
    # The last block is copied where it is partly filled: by every fork, since the parent keeps it.
    assert copied == (0 if prefix % 64 == 0 else 3 * len(runner.pool.groups))
    # The parent is untouched by its children, and they by each other's end.
    forks[0].free()
    again = runner.step([(parent, suffixes[1])])
    assert_same(backend, again, want[1:2])


@pytest.mark.parametrize(("backend", "kv"), STORED)
def test_trim_then_continue_equals_a_fresh_run(backend: str, kv: str) -> None:
    for name in ("llama", "gemma3"):
        runner, ids = tiny_runner(name, backend, kv), random_ids(150)
        sequence = Sequence(runner.pool)
        runner.step([(sequence, ids)])
        for length in (140, 129, 128, 127, 10):
            sequence.trim(length)
            other = random_ids(20, seed=length)
            got = runner.step([(sequence, other)])
            want = one_shot(tiny_runner(name, backend, kv), ids[:length] + other)[-1:]
            assert_same(backend, got, want)
            sequence.trim(length)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sliding_layers_hold_a_window_and_full_layers_the_context(backend: str) -> None:
    runner, ids = tiny_runner("gemma3", backend), random_ids(300)
    sequence = Sequence(runner.pool)
    for i in range(0, 300, 10):
        runner.step([(sequence, ids[i : i + 10])])
    full, sliding = sequence.used_blocks()
    assert len(full) == 5
    assert len(sliding) <= 2


@pytest.mark.parametrize("fault", (KeyboardInterrupt, MemoryError))
def test_a_failed_step_leaves_every_sequence_as_it_was(fault: type[BaseException], monkeypatch) -> None:
    runner = tiny_runner("gemma3", "ref")
    batch = [(Sequence(runner.pool), random_ids(n, seed=n)) for n in (70, 130)]
    runner.step(batch)
    used = [s.used_blocks() for s, _ in batch]
    calls = []
    mlp = composites.mlp_block

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise fault
        mlp(*args, **kwargs)

    monkeypatch.setattr(composites, "mlp_block", fail)
    with pytest.raises(fault):
        runner.step([(s, [5] * 90) for s, _ in batch])
    monkeypatch.undo()
    assert [s.length for s, _ in batch] == [70, 130]
    assert [s.used_blocks() for s, _ in batch] == used
    got = runner.step([(s, [9, 8]) for s, _ in batch])
    control = tiny_runner("gemma3", "ref")
    assert_same("ref", got, np.concatenate([one_shot(control, [*ids, 9, 8])[-1:] for _, ids in batch]))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", (np.nan, np.inf))
@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_that_are_not_finite_are_an_error(backend: str, bad: float) -> None:
    good, model = tiny_runner("llama", backend), tiny_model("llama")
    norm = model.head.norm.copy()
    norm[7] = bad
    broken = replace(model, head=replace(model.head, norm=norm))
    runner = Runner(good.transformer.ops, broken, good.pool, Activations.F32)
    sequence = Sequence(good.pool)
    with pytest.raises(PolyKVError, match="not finite"):
        runner.step([(sequence, [5, 6])])
    assert sequence.length == 0
    assert np.isfinite(good.step([(sequence, [5, 6])])).all()


def test_rows_that_get_logits() -> None:
    runner = tiny_runner("llama", "ref")
    everything = one_shot(runner, random_ids(9))

    def batch() -> list[tuple[Sequence, list[int]]]:
        return [(Sequence(runner.pool), random_ids(9)) for _ in range(3)]

    assert runner.step(batch(), Logits.NONE).shape == (0, 320)
    mixed = runner.step(batch(), [Logits.ALL, Logits.NONE, Logits.LAST])
    np.testing.assert_allclose(mixed, np.concatenate([everything, everything[-1:]]), atol=1e-5)
    out = np.full((9, 320), np.nan, np.float32)
    assert runner.step(batch()[:1], Logits.ALL, out=out) is out
    np.testing.assert_allclose(out, everything, atol=1e-5)
    assert runner.step([]).shape == (0, 320)


def test_what_a_step_refuses() -> None:
    runner = tiny_runner("llama", "ref", max_tokens=128)
    sequence = Sequence(runner.pool)
    for ids in ([320], [-1], [2**40]):
        with pytest.raises(PromptError, match="outside the vocabulary of 320"):
            runner.step([(sequence, ids)])
    with pytest.raises(ConfigError, match="at least one new token"):
        runner.step([(sequence, [])])
    with pytest.raises(ConfigError, match="every sequence once"):
        runner.step([(sequence, [1]), (sequence, [2])])
    with pytest.raises(CapacityError):
        runner.step([(sequence, [1] * 64), (Sequence(runner.pool), [1] * 65)])
    assert sequence.length == 0
    assert runner.step([(sequence, [1] * 128)]).shape == (1, 320)


def test_a_step_costs_three_calls() -> None:
    runner = tiny_runner("gemma3", "ref")
    batch = [(Sequence(runner.pool), random_ids(n, seed=n)) for n in (1, 5, 70)]
    calls = runner.transformer.ops.calls
    calls.clear()
    runner.step(batch)
    # Arenas grew for the rows.
    del calls["kv_grow"]
    assert calls == {"embed": 1, "layers": 1, "head": 1}
    assert (runner.counters.steps, runner.counters.rows, runner.counters.head_rows) == (1, 76, 3)


def test_huge_logits_are_finite() -> None:
    """Their sum is not, which is all that is looked at first."""
    large = np.full((2, 320), 3e38, np.float32)
    check_finite(np.asarray, large, total(large))
    for bad in (np.nan, np.inf, -np.inf):
        logits = np.full((2, 320), 3e38, np.float32)
        logits[1, 7] = bad
        with pytest.raises(PolyKVError, match="1 of 2 rows"):
            check_finite(np.asarray, logits, total(logits))
