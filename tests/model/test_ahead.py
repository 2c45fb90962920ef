"""Steps that were begun before they were asked for: the same tokens, counters and caches as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llm import tiny_llm
from tiny_models import random_ids, tiny_model, tiny_runner

from polykv.cache.persist import _Saved, load_sequences, save_sequences
from polykv.cache.sequence import Sequence
from polykv.errors import PolyKVError
from polykv.llm import LLM
from polykv.model.choice import MostLikely
from polykv.model.runner import Logits, Runner
from polykv.sampling import Draws, SamplingParams
from polykv.types import Activations

PROMPTS = ["0 or 1?", "How many arches?", "x", "a longer one, with a comma and an end. " * 3]


def running_ahead(name: str = "llama", kv: str = "f16") -> Runner:
    """A runner on `cpu` that begins next steps as on a device. Blocks of 64 cells."""
    runner = tiny_runner(name, "cpu", kv)
    runner.transformer.runs_ahead = True
    return runner


def both(name: str = "llama", **options: Any) -> tuple[LLM, LLM]:
    """With steps begun ahead, and without."""
    on, off = tiny_llm(name, **options), tiny_llm(name, **options)
    on.engine.runner.transformer.runs_ahead = True
    return on, off


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 3}, {"repetition_penalty": 1.2}])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_generations_are_the_same(name: str, options: dict[str, float]) -> None:
    on, off = both(name)
    for prompts in ([PROMPTS[0]], PROMPTS):
        got, want = ([g.tokens for g in llm.generate_many(prompts, max_tokens=40, **options)] for llm in (on, off))
        assert got == want
    c = on.engine.runner.counters
    assert on.cache.counters == off.cache.counters
    assert off.engine.runner.counters.ahead == 0
    if "repetition_penalty" in options:
        # The choice depends on the token before.
        assert c.ahead == 0
    else:
        # Blocks are of 8 cells here, and windows let go of one in other steps than those that need one.
        assert c.ahead > 0.4 * c.steps


@pytest.mark.parametrize("free", [False, True])
def test_every_step_is_ahead_that_has_free_blocks(free: bool) -> None:
    runner = running_ahead()
    if free:
        runner.pool.reserve(0, 4)
    s, ids = Sequence(runner.pool), random_ids(10)
    for _ in range(70):
        ids = runner.next_tokens([(s, ids)], more=True).tolist()
    # Positions 64 to 79 need a second block: where the pool would have to grow, the step that writes 64 is not begun
    # before. Nor is the first one.
    assert runner.counters.steps == 70 and runner.counters.ahead == 68 + free and runner.counters.ahead_lost == 0


@pytest.mark.parametrize("kv", ["q8_0/turbo3", "turbo4+c/turbo3,sink=4,recent=20"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_sequences_that_come_to_ends_of_blocks_at_different_times(name: str, kv: str) -> None:
    """Two of them take new blocks in the same step; others let go of one: out of their windows, or as it is coded."""
    results = []
    for runner in (running_ahead(name, kv), tiny_runner(name, "cpu", kv)):
        for g in range(len(runner.pool.groups)):
            runner.pool.reserve(g, 12)
        sequences = [Sequence(runner.pool) for _ in range(3)]
        lengths = (61, 60, 60)
        batch = [(s, random_ids(n, seed=n + i)) for i, (s, n) in enumerate(zip(sequences, lengths, strict=True))]
        found = []
        for _ in range(80):
            ids = runner.next_tokens(batch, more=True).tolist()
            batch = [(s, [i]) for s, i in zip(sequences, ids, strict=True)]
            found.append(ids)
        counters = runner.counters
        results.append((found, [s.tables for s in sequences], dict(runner.pool.counters)))
        if runner.transformer.runs_ahead:
            assert counters.ahead_lost == 0 and counters.ahead >= (79 if (name, kv) == ("llama", "q8_0/turbo3") else 70)
    assert results[0] == results[1]


def test_a_block_that_somebody_else_takes_is_not_the_one_that_was_expected() -> None:
    """The step had been begun with it, and is done again."""
    results = []
    for runner in (running_ahead(), tiny_runner("llama", "cpu", "f16")):
        runner.pool.reserve(0, 6)
        s, other = Sequence(runner.pool), Sequence(runner.pool)
        (token,) = runner.next_tokens([(s, random_ids(64))], more=True).tolist()
        first = runner.next_tokens([(other, random_ids(3, seed=1))], more=True).tolist()
        found = [token, first, runner.next_tokens([(s, [token])]).tolist()]
        results.append((found, s.tables, other.tables))
    assert results[0] == results[1]


def test_a_free_block_that_a_file_was_read_into_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step had been begun with it; it is free again, but what the step wrote there is gone."""
    results = []
    for runner in (running_ahead(), tiny_runner("llama", "cpu", "f16")):
        runner.pool.reserve(0, 6)
        s, other = Sequence(runner.pool), Sequence(runner.pool)
        runner.next_tokens([(other, random_ids(40, seed=3))])
        save_sequences(tmp_path / "other.pool", [other])
        other.free()
        found = [runner.next_tokens([(s, random_ids(64))], more=True).tolist()]
        with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
            m.setattr(_Saved, "sequences", interrupted)
            load_sequences(tmp_path / "other.pool", runner.pool)
        found += [runner.next_tokens([(s, found[-1])], more=True).tolist() for _ in range(2)]
        results.append((found, s.tables, runner.step([(s, [7])]).tolist()))
    assert results[0] == results[1]


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_is_asked_for_instead_is_done() -> None:
    """Another token, another choice, logits, a fork, a trim, a step of others: what was begun is forgotten."""
    params = SamplingParams(temperature=0.9, seed=4)
    for change in ("token", "draw", "logits", "fork", "trim", "other", "company"):
        results = []
        for runner in (running_ahead("gemma3", "q8_0/turbo3"), tiny_runner("gemma3", "cpu", "q8_0/turbo3")):
            s, other = Sequence(runner.pool), Sequence(runner.pool)
            runner.next_tokens([(s, random_ids(20)), (other, random_ids(30, seed=1))])
            (token,) = runner.next_tokens([(s, [7])], more=True).tolist()
            found: list[Any] = [token]
            if change == "token":
                found.append(runner.next_tokens([(s, [token ^ 1])]).tolist())
            elif change == "draw":
                found.append(runner.sampled([(s, [token])], [Logits.LAST], Draws((params,), (1,), ([],))).tolist())
            elif change == "logits":
                found.append(runner.step([(s, [token])]).tolist())
            elif change == "fork":
                child = s.fork()
                found.append(runner.next_tokens([(child, [token]), (s, [token])]).tolist())
            elif change == "trim":
                s.trim(s.length - 1)
                found.append(runner.next_tokens([(s, [9])], more=True).tolist())
                found.append(runner.next_tokens([(s, [token])]).tolist())
            elif change == "other":
                found.append(runner.next_tokens([(other, [token])]).tolist())
            else:
                found.append(runner.next_tokens([(s, [token]), (other, [token])]).tolist())
            found.append(runner.next_tokens([(s, [11])]).tolist())
            found.append(dict(runner.pool.counters))
            results.append((found, runner.counters.ahead, runner.counters.ahead_lost))
        (got, ahead, lost), (want, *_) = results
        assert got == want, change
        assert ahead == 0 and lost >= 1, change


def test_the_same_place_with_another_past() -> None:
    """A sequence that was cut and grown again has the length that was expected, and the token, but other cells."""
    runner, control = running_ahead(), tiny_runner("llama", "cpu", "f16")
    s, ids = Sequence(runner.pool), random_ids(20)
    (token,) = runner.next_tokens([(s, ids)], more=True).tolist()
    s.trim(10)
    s.extend(random_ids(10, seed=9))
    s.commit()
    s.trim(10)
    other = random_ids(10, seed=9)
    runner.step([(s, other)])
    got = runner.next_tokens([(s, [token])])
    want = control.next_tokens([(Sequence(control.pool), [*ids[:10], *other, token])])
    assert got.tolist() == want.tolist() and runner.counters.ahead == 0


def test_bad_logits_and_interruptions_leave_nothing_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = running_ahead()
    s = Sequence(runner.pool)
    (token,) = runner.next_tokens([(s, random_ids(5))], more=True).tolist()
    for error in (KeyboardInterrupt, PolyKVError("not finite")):
        with monkeypatch.context() as m:

            def end(self: MostLikely, *found: Any, error: Any = error) -> Any:
                raise error

            m.setattr(MostLikely, "end", end)
            with pytest.raises((KeyboardInterrupt, PolyKVError)):
                runner.next_tokens([(s, [token])], more=True)
        assert s.length == 5 and runner._begun is None
    want = tiny_runner("llama", "cpu", "f16")
    t = Sequence(want.pool)
    want.next_tokens([(t, random_ids(5))])
    assert runner.next_tokens([(s, [token])]).tolist() == want.next_tokens([(t, [token])]).tolist()


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 140), min_size=1, max_size=4),
    steps=st.lists(st.sampled_from(["same", "one fewer", "again", "logits"]), min_size=1, max_size=12),
)
def test_any_order_of_steps(lengths: list[int], steps: list[str]) -> None:
    runners = running_ahead("gemma3"), tiny_runner("gemma3", "cpu", "f16")
    results = []
    for runner in runners:
        # With free blocks to begin with, later steps at the ends of blocks are begun, too.
        for g in range(len(runner.pool.groups)):
            runner.pool.reserve(g, 6)
        sequences = [Sequence(runner.pool) for _ in lengths]
        ids = runner.next_tokens(
            [(s, random_ids(n, seed=n)) for s, n in zip(sequences, lengths, strict=True)], more=True
        ).tolist()
        found = [ids]
        for step in steps:
            batch = [(s, [i]) for s, i in zip(sequences, ids, strict=True)]
            if step == "logits":
                ids = runner.step(batch).argmax(axis=1).tolist()
            elif step == "one fewer" and len(batch) > 1:
                ids = [*runner.next_tokens(batch[1:], more=True).tolist()]
                sequences = sequences[1:]
            else:
                ids = runner.next_tokens(batch, more=True).tolist()
            found.append(ids)
        results.append((found, dict(runner.pool.counters), [s.tokens for s in sequences]))
    assert results[0] == results[1]


def test_not_on_a_backend_that_waits() -> None:
    runner = tiny_runner("llama", "cpu", "f16")
    s = Sequence(runner.pool)
    runner.next_tokens([(s, random_ids(5))], more=True)
    assert runner._begun is None and np.array_equal(s.tokens, random_ids(5))


def test_observers_see_no_row_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tiny_runner("llama", "cpu", "f16")
    monkeypatch.setattr(plain.transformer.ops, "runs_ahead", lambda: True)
    for observes in (False, True):
        rows: list[int] = []

        def observer(layer: int, h: Any, angles: Any, rows: list[int] = rows) -> None:
            rows += [len(h)] * (layer == 0)

        pool, ops = tiny_runner("llama", "cpu", "f16").pool, plain.transformer.ops
        model = tiny_model("llama")
        runner = Runner(ops, model, pool, Activations.F32, observer if observes else None)
        assert runner.transformer.runs_ahead is not observes
        runner.next_tokens([(Sequence(pool), random_ids(5))], more=True)
        assert rows == [5] * observes


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("backend", ["ref", "cpu"])
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"min_p": 0.1}, {"top_p": 0.5}])
def test_logits_that_are_not_finite_are_refused_when_drawn_from(
    monkeypatch: pytest.MonkeyPatch, backend: str, value: float, options: dict[str, Any]
) -> None:
    """Tokens are drawn before anybody has looked."""
    runner = tiny_runner("llama", backend, "f16")
    sequence, logits = Sequence(runner.pool), np.zeros((1, runner.vocab), np.float32)
    logits[0, 7] = value
    monkeypatch.setattr(runner.transformer, "logits", lambda h: logits)
    draws = Draws((SamplingParams(temperature=1.0, **options),), (0,), ([],))
    with pytest.raises(PolyKVError, match="not finite"):
        runner.sampled([(sequence, [5])], [Logits.LAST], draws)
    assert sequence.length == 0
