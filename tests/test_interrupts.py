"""Ctrl-C at any line, callbacks that raise, streams that are dropped: nothing is lost, nothing waits for ever."""

from __future__ import annotations

import gc
import sys
from functools import partial

import pytest
from interrupts import interrupt_at
from test_engine import tiny_engine, used
from tiny_llm import DOCUMENT, QUESTIONS, tiny_llm
from tiny_models import random_ids

from polykv.cache.sequence import Sequence
from polykv.engine import Engine
from polykv.engine_options import make_request
from polykv.engine_request import Generation, Request
from polykv.errors import ConfigError

FILES = ("/polykv/engine", "/polykv/cache/", "/polykv/agent", "/polykv/shared_pool", "/polykv/model/runner")
# A prime number of lines between two interruptions, so that loops are hit at different places.
STRIDE = 149


def turns(pool, n: int = 4) -> None:
    with pool.fork() as agent:
        agent.ask(QUESTIONS[0], max_tokens=n)
        with agent.fork() as twin:
            twin.ask(QUESTIONS[1], max_tokens=n)
        agent.trim(agent.turns[-1])
        agent.ask(QUESTIONS[2], max_tokens=n)


ACTIONS = {
    "ask": lambda llm, pool, i: pool.ask(QUESTIONS[:2], max_tokens=4),
    "agent": lambda llm, pool, i: turns(pool),
    "generate": lambda llm, pool, i: llm.generate(f"{i} hello " * 20, max_tokens=30),
    "pool": lambda llm, pool, i: llm.pool(f"{i} other " * 20).close(),
}


@pytest.mark.parametrize("model", ["llama", "gemma3"])
@pytest.mark.parametrize("action", ACTIONS)
def test_ctrl_c_at_any_line(model: str, action: str) -> None:
    llm = tiny_llm(model, chat=True, kv="q8_0/turbo3", cache_tokens=2048)
    pool = llm.pool(DOCUMENT)

    def answers() -> list[list[int]]:
        tokens = [a.tokens for a in pool.ask(QUESTIONS[:2], max_tokens=4)]
        pool.release()
        return tokens

    want = answers()
    used = [m.n_used for m in llm.cache.managers]
    n = 0
    while interrupt_at(n, partial(ACTIONS[action], llm, pool, n), FILES):
        pool.release()
        gc.collect()
        llm.engine.sweep()
        assert [m.n_used for m in llm.cache.managers] == used, n
        assert not llm.engine.busy
        if n % 4 == 0:
            assert answers() == want, n
        n += STRIDE
    assert n > 5 * STRIDE
    pool.close()
    llm.engine.sweep()
    assert [m.n_used for m in llm.cache.managers] == [0] * len(used)


def test_a_stream_goes_on_after_another_request_was_interrupted_between_model_and_choice(monkeypatch) -> None:
    llm = tiny_llm()
    want = llm.generate("alone", max_tokens=12, ignore_eog=True)
    stream = llm.stream("alone", max_tokens=12, ignore_eog=True)
    text = next(stream)
    accept = llm.engine._accept
    monkeypatch.setattr(llm.engine, "_accept", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        llm.generate("beside", max_tokens=12)
    monkeypatch.setattr(llm.engine, "_accept", accept)
    assert text + "".join(stream) == want.text
    assert stream.generation.tokens == want.tokens


def test_ctrl_c_in_the_finalizer_of_a_forgotten_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    # That of pytest keeps the frames, and so the sequence.
    monkeypatch.setattr(sys, "unraisablehook", lambda event: None)
    engine = tiny_engine()
    for n in range(9):
        sequences = [Sequence(engine.pool)]
        engine.runner.step([(sequences[0], random_ids(100))])
        interrupt_at(n, sequences.clear, ("/polykv/cache/sequence",))
        engine.sweep()
        assert used(engine) == 0, n


def waiting(engine: Engine, **options) -> list[Request]:
    """Three requests in the queue; options are those of the first."""
    sizes = ((60, 20), (60, 30), (50, 25))
    hot = {"ignore_eog": True, "temperature": 2.0}
    made = [
        make_request(random_ids(n, seed=i), max_tokens=m, **hot | (options if i == 0 else {}))
        for i, (n, m) in enumerate(sizes)
    ]
    return [engine.submit(r) for r in made]


def stepped(engine: Engine, requests: list[Request]) -> list[Generation]:
    """What they get, when the parties go on stepping until theirs is done."""
    for _ in range(500):
        if all(r.done for r in requests):
            return [r.result() for r in requests]
        engine.step()
    pytest.fail("somebody waits for ever")


@pytest.mark.parametrize("event", ["length", "stop", "eog", "put back"])
def test_ctrl_c_of_one_party_changes_nothing_for_the_others(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polykv.engine_schedule.fits", lambda *_: True)
    # Room for two, so that one is put back when they grow.
    room = 192 if event == "put back" else 1024
    plain = tiny_engine(context=100, max_tokens=room)
    first = stepped(plain, waiting(plain))[0]
    options = {"stop": {"stop": first.text[-4:-2]}, "eog": {"ignore_eog": False}}.get(event, {})

    def start() -> tuple[Engine, list[Request]]:
        engine = tiny_engine(context=100, max_tokens=room)
        engine.tokenizer.eog = frozenset(first.tokens[15:])
        return engine, waiting(engine, **options)

    engine, requests = start()
    while not (engine.counters.preempted if event == "put back" else requests[0].done):
        engine.step()
    steps = engine.runner.counters.steps - (event != "put back")
    want = [(g.tokens, g.text, g.finish_reason) for g in stepped(engine, requests)]
    assert event == "put back" or want[0][2].value == event
    n, hit = 0, True
    while hit:
        engine, requests = start()
        for _ in range(steps):
            engine.step()
        hit = interrupt_at(n, engine.step, ("/polykv/engine", "/polykv/text/stream"))
        found = [(g.tokens, g.text, g.finish_reason) for g in stepped(engine, requests)]
        assert found == want and [r.take() for r in requests] == [text for _, text, _ in want], n
        assert used(engine) == 0 and not engine.busy
        n += 11
    assert n > 150


def test_a_callback_that_raises_ends_its_own_request_only() -> None:
    llm = tiny_llm(chunk=32)
    want = llm.generate("alone " * 40, max_tokens=6)

    def broken(done: int, total: int) -> None:
        raise ZeroDivisionError

    first = llm.stream("alone " * 40, max_tokens=6)
    with pytest.raises(ZeroDivisionError):
        llm.generate("beside " * 40, max_tokens=6, on_prefill=broken)
    assert "".join(first) == want.text

    # The one whose callback raises is not the one that is waited for: who waits for it meets the exception.
    other = llm.stream("beside " * 40, max_tokens=6, on_prefill=broken)
    assert llm.generate("alone " * 40, max_tokens=6).tokens == want.tokens
    with pytest.raises(ZeroDivisionError):
        next(other)
    assert "".join(other) == ""
    assert other.generation.finish_reason.value == "cancelled"
    assert not llm.engine.busy


def test_asking_on_after_leaving_a_stream_with_break() -> None:
    llm = tiny_llm(chat=True)
    with llm.pool(DOCUMENT) as pool:
        agent = pool.fork()
        for _ in agent.stream(QUESTIONS[0], max_tokens=20, ignore_eog=True):
            break
        assert agent.ask(QUESTIONS[1], max_tokens=3).tokens
        assert len(agent.turns) == 2


def test_agents_forked_from_agents_are_counted_and_closed_with_the_pool() -> None:
    llm = tiny_llm(chat=True, kv="q8_0/turbo3")
    pool = llm.pool(DOCUMENT)
    agent = pool.fork()
    agent.ask("A long question. " * 30, max_tokens=3)
    twins = [agent.fork() for _ in range(3)]
    assert pool.agents == [agent, *twins]
    memory = pool.memory()
    assert memory.total == llm.cache.used_nbytes
    assert memory.private[1:] == [0, 0, 0]
    twins[0].ask(QUESTIONS[0], max_tokens=3)
    assert pool.memory().total == llm.cache.used_nbytes
    pool.close()
    assert all(t.freed for t in twins)
    assert llm.cache.used_nbytes == 0


@pytest.mark.parametrize(
    "option",
    [
        {"max_tokens": 2.5},
        {"max_tokens": "3"},
        {"max_tokens": float("nan")},
        {"stop": 5},
        {"stop": None},
        {"on_prefill": 3},
    ],
)
def test_options_of_the_wrong_type(option) -> None:
    llm = tiny_llm()
    with pytest.raises(ConfigError, match=next(iter(option))):
        llm.generate("x", **option)
