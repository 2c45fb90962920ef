"""Screened greedy tokens through the engine: the same as from all logits, and counted."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from interrupts import interrupt_at
from tiny_models import tiny_path

import polykv
from polykv.cache.sequence import Sequence
from polykv.errors import PolyKVError
from polykv.llm import LLM
from polykv.model import runner, screen
from polykv.model.runner import Logits
from polykv.types import Resident, WeightType

PROMPTS = ["0 or 1?", "How many arches?", "x", "a longer one, with a comma and an end. " * 3]


def tiny(name: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> LLM:
    """A tiny model whose head is screened however little that saves."""
    monkeypatch.setattr(screen, "SMALL", 0)
    monkeypatch.setattr(screen, "MOST", 1.0)
    monkeypatch.setattr(runner, "WIDE", 2.0)
    return polykv.load(tiny_path(name, "q8_0"), activations="q8", ctx=1024, **options)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_same_tokens_with_and_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on, off = tiny(name, monkeypatch), tiny(name, monkeypatch, screen=False)
    assert on.model.head.out.type is Resident.Q8_0_PLANES and off.model.head.out.type is WeightType.Q8_0
    assert on.unscreened == "" and off.unscreened == "switched off"
    for prompt in PROMPTS:
        a, b = (llm.generate(prompt, max_tokens=20) for llm in (on, off))
        assert a.tokens == b.tokens
    ids = list(range(5, 90))
    assert np.array_equal(on.logits(ids), off.logits(ids))
    both = [llm.generate_many(PROMPTS, max_tokens=12) for llm in (on, off)]
    assert [g.tokens for g in both[0]] == [g.tokens for g in both[1]]
    c, d = on.engine.runner.counters, off.engine.runner.counters
    # Four rows in a step take all logits, one and two do not.
    assert 0 < c.screened_rows < c.greedy_rows == d.greedy_rows == c.head_rows - len(ids)
    assert 0 < c.exact_logits <= c.screened_rows * on.config.vocab
    assert (d.screened_rows, d.exact_logits) == (0, 0)
    assert on.report()["screen"] == "on" and off.report()["screen"] == "switched off"
    assert on.report()["counters"]["runner"]["screened_rows"] == c.screened_rows
    assert on.notes == off.notes


@pytest.mark.parametrize("options", [{"temperature": 0.8}, {"repetition_penalty": 1.3}])
def test_requests_that_need_all_logits(options: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and next to greedy ones: each gets the tokens that it gets without a screen."""
    on, off = tiny("llama", monkeypatch), tiny("llama", monkeypatch, screen=False)
    want = [off.generate(PROMPTS[0], max_tokens=9, **options).tokens, off.generate(PROMPTS[1], max_tokens=15).tokens]
    assert on.generate(PROMPTS[0], max_tokens=9, **options).tokens == want[0]
    assert on.engine.runner.counters.greedy_rows == 0
    requests = [on._request(PROMPTS[0], False, {"max_tokens": 9, **options})]
    requests += [on._request(PROMPTS[1], False, {"max_tokens": 15})]
    assert [g.tokens for g in on.engine.run(requests)] == want
    # Once the other has ended, the greedy one goes on alone.
    assert on.engine.runner.counters.screened_rows == 6


def test_a_penalty_of_one_is_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny("llama", monkeypatch)
    llm.generate("x", max_tokens=5, repetition_penalty=1.0, top_k=3)
    assert llm.engine.runner.counters.screened_rows == 5


def test_next_tokens_are_those_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny("gemma3", monkeypatch)
    ids = [np.random.default_rng(i).integers(4, 300, 5 + i).tolist() for i in range(4)]
    items = [[(Sequence(llm.cache), i) for i in ids] for _ in range(3)]
    step, next_tokens = llm.engine.runner.step, llm.engine.runner.next_tokens
    want = step(items[0], [Logits.ALL, Logits.NONE, Logits.LAST, Logits.LAST])
    got = next_tokens(items[1], [Logits.ALL, Logits.NONE, Logits.LAST, Logits.LAST])
    assert np.array_equal(got, want.argmax(axis=1)) and got.dtype == np.int32
    assert next_tokens(items[2], Logits.NONE).shape == (0,)
    assert next_tokens([]).shape == (0,)
    one = [[(Sequence(llm.cache), ids[0])] for _ in range(2)]
    assert next_tokens(one[0])[0] == step(one[1])[0].argmax()
    assert llm.engine.runner.counters.screened_rows == 1


def test_logits_that_are_not_finite_undo_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny("llama", monkeypatch)
    steps = llm.engine.runner
    sequence = Sequence(llm.cache)
    steps.next_tokens([(sequence, [5, 6, 7])])
    before = steps.counters.steps
    weights = steps.transformer.stack.layers[0].mlp.norm
    kept = weights.copy()
    weights[...] = np.nan
    for step in (steps.step, steps.next_tokens):
        with pytest.raises(PolyKVError, match=r"not finite \(1 of 1 rows\)"):
            step([(sequence, [8])])
        assert sequence.length == 3 and steps.counters.steps == before
    with pytest.raises(PolyKVError, match="not finite"):
        llm.generate("x", max_tokens=3)
    weights[...] = kept
    assert steps.next_tokens([(sequence, [8])]).shape == (1,)


def test_a_screen_that_does_not_pay_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny("llama", monkeypatch)
    want = llm.generate("x", max_tokens=20, ignore_eog=True).tokens
    monkeypatch.setattr(runner, "WIDE", 0.0)
    monkeypatch.setattr(runner, "REST", 4)
    c = llm.engine.runner.counters
    before = c.screened_rows
    assert llm.generate("x", max_tokens=20, ignore_eog=True).tokens == want
    # One, two, four and four without a screen come after those with one.
    assert c.screened_rows - before == 5


def test_ctrl_c_at_any_line(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny("llama", monkeypatch)
    want = llm.generate(PROMPTS[0], max_tokens=6).tokens
    n = 0
    while interrupt_at(n, partial(llm.generate, PROMPTS[0], max_tokens=6), ("/polykv/engine", "/polykv/model/")):
        llm.engine.sweep()
        assert not llm.engine.busy
        assert llm.generate(PROMPTS[0], max_tokens=6).tokens == want, n
        n += 37
    assert n > 5 * 37


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"activations": "f32"}, "activations are f32"),
        ({"backend": "ref", "activations": "q8"}, "the backend reads all of the output matrix"),
    ],
)
def test_why_not(options: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "SMALL", 0)
    llm = polykv.load(tiny_path("llama", "q8_0"), ctx=256, **options)
    assert reason in llm.unscreened and reason in llm.report()["screen"]
    # It is a property of the model, nothing that was asked for and not done.
    assert not any(reason in note for note in llm.notes)
    llm.generate("x", max_tokens=2)
    assert llm.engine.runner.counters.screened_rows == 0


def test_small_and_float_matrices_stay() -> None:
    assert "small" in polykv.load(tiny_path("llama", "q8_0"), ctx=256).unscreened
    assert "F16" in polykv.load(tiny_path("llama", "f16"), ctx=256).unscreened


def test_wide_bounds_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "SMALL", 0)
    monkeypatch.setattr(screen, "MOST", 0.0)
    llm = polykv.load(tiny_path("llama", "q8_0"), ctx=256)
    assert "too wide" in llm.unscreened and llm.model.head.out.type is WeightType.Q8_0


def test_factors_of_states_without_numbers() -> None:
    for x in (np.zeros((3, 32), np.float32), np.full((3, 32), np.nan, np.float32)):
        found = screen.factors(x)
        assert found.dtype == np.float32 and ((found >= 1) & (found <= 1024)).all()
    x = np.ones((3, 32), np.float32)
    x[:, 4] = 1e6
    assert screen.factors(x)[4] == 1 and 1 < screen.factors(x).max() <= 1024
