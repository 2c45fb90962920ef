"""The engine: what a request gets never depends on its company, on room, or on who was cancelled."""

from __future__ import annotations

import signal
import threading
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import random_ids, tiny_model, tiny_runner

from polykv import ops as operations
from polykv.cache.sequence import Sequence
from polykv.engine import Engine
from polykv.engine_options import make_request
from polykv.engine_request import Finish, Generation, Request
from polykv.errors import CapacityError, ConfigError, PolyKVError, PromptError
from polykv.sampling import SamplingParams, choose, uniform
from polykv.text.tokenizer import Tokenizer


def tiny_engine(name: str = "llama", backend: str = "cpu", kv: str = "q8_0/turbo3", **options: int) -> Engine:
    max_tokens = options.pop("max_tokens", 4096)
    runner = tiny_runner(name, backend, kv, max_tokens=max_tokens)
    tokenizer = Tokenizer.from_gguf(tiny_model(name).gguf.metadata)
    return Engine(operations.load(backend), runner, tokenizer, **{"context": 1024, "chunk": 64, **options})


def request(n: int, max_tokens: int | None = 12, seed: int = 0, **options) -> Request:
    return make_request(random_ids(n, seed=n), max_tokens=max_tokens, ignore_eog=True, seed=seed, **options)


def used(engine: Engine) -> int:
    return sum(m.n_used for m in engine.pool.managers)


@cache
def alone(name: str, n: int, max_tokens: int = 12, seed: int = 0, **options) -> Generation:
    """The generation of one request in an engine of its own."""
    return tiny_engine(name).run([request(n, max_tokens, seed, **options)])[0]


CASES = [(5, 12, 0), (64, 3, 1), (65, 20, 2), (200, 1, 3), (130, 9, 4)]


@pytest.mark.parametrize("name", ("llama", "gemma3"))
@pytest.mark.parametrize("temperature", (0.0, 1.5))
def test_each_request_gets_what_it_gets_alone(name: str, temperature: float) -> None:
    options = {"temperature": temperature, "top_k": 50, "min_p": 0.001, "repetition_penalty": 1.2}
    want = [alone(name, n, m, seed, **options).tokens for n, m, seed in CASES]
    engine = tiny_engine(name)
    got = engine.run([request(n, m, seed, **options) for n, m, seed in CASES])
    assert [g.tokens for g in got] == want
    assert [len(g.tokens) for g in got] == [m for _, m, _ in CASES]
    # Prompts were read while others were generating: fewer steps than one after the other.
    assert engine.runner.counters.steps < sum(g.stats.steps for g in got)
    assert used(engine) == 0
    assert not engine.busy


@settings(max_examples=6, deadline=None)
@given(chunk=st.integers(5, 300), max_batch=st.integers(1, 6), order=st.permutations(range(len(CASES))))
def test_scheduling_changes_no_token(chunk: int, max_batch: int, order: list[int]) -> None:
    engine = tiny_engine("gemma3", chunk=chunk, max_batch=max_batch)
    got = engine.run([request(*CASES[i]) for i in order])
    assert [g.tokens for g in got] == [alone("gemma3", *CASES[i]).tokens for i in order]


def test_seed_and_index_decide_the_draw() -> None:
    one, other = (alone("llama", 20, 30, seed, temperature=3.0).tokens for seed in (1, 2))
    assert one != other
    assert one == alone("llama", 20, 30, 1, temperature=3.0).tokens


def test_prefix_reuse_is_counted_and_changes_no_token() -> None:
    engine = tiny_engine("llama")
    first, second = (engine.run([request(200)])[0] for _ in range(2))
    assert (first.stats.cache_n, second.stats.cache_n) == (0, 192)
    assert first.tokens == second.tokens
    assert engine.counters.cache_n == 192
    assert engine.counters.prompt_n == 400


def test_a_full_cache_delays_requests_and_changes_no_token() -> None:
    # Room for one and a half of these requests: admission waits for the first to end.
    engine = tiny_engine("llama", max_tokens=320)
    got = engine.run([request(n, 20) for n in (150, 151, 152)])
    assert [g.tokens for g in got] == [alone("llama", n, 20).tokens for n in (150, 151, 152)]
    assert engine.counters.preempted == 0
    assert used(engine) == 0


def test_a_request_that_was_put_back_gives_the_same_tokens(monkeypatch) -> None:
    # Without admission control both start, and the cache fills up while they generate.
    monkeypatch.setattr("polykv.engine_schedule.fits", lambda *_: True)
    engine = tiny_engine("llama", max_tokens=320)
    got = engine.run([request(n, 100, temperature=2.0) for n in (100, 101)])
    assert engine.counters.preempted >= 1
    monkeypatch.undo()
    assert [g.tokens for g in got] == [alone("llama", n, 100, temperature=2.0).tokens for n in (100, 101)]
    assert used(engine) == 0


def test_what_cannot_fit_is_refused_with_numbers() -> None:
    engine = tiny_engine("llama", context=100)
    with pytest.raises(PromptError, match=r"has 100 tokens.*context of 101.*has 100"):
        engine.run([request(100)])
    with pytest.raises(CapacityError, match="4 more blocks of 64 tokens"):
        tiny_engine("llama", max_tokens=192, chunk=512).run([request(250)])
    for bad in ({"context": 0}, {"chunk": 0}, {"max_batch": 0}):
        with pytest.raises(ConfigError):
            tiny_engine("llama", **bad)
    assert not engine.busy
    assert used(engine) == 0


def test_why_a_generation_ends() -> None:
    engine = tiny_engine("llama", context=100)
    assert engine.run([request(90, 5)])[0].finish_reason is Finish.LENGTH
    full = engine.run([request(90, 50)])[0]
    assert (full.finish_reason, len(full.tokens)) == (Finish.CONTEXT, 10)
    assert len(engine.run([request(95, None)])[0].tokens) == 5
    nothing = engine.run([request(95, 0)])[0]
    assert (nothing.finish_reason, nothing.tokens, nothing.text) == (Finish.LENGTH, [], "")

    tokens = engine.run([request(50, 20)])[0].tokens
    engine.tokenizer.eog = frozenset({tokens[4]})
    r = request(50, 20)
    r.ignore_eog = False
    ended = engine.run([r])[0]
    assert ended.finish_reason is Finish.EOG
    assert ended.tokens == tokens[: tokens.index(tokens[4]) + 1]


def test_stop_strings_end_the_text_before_them() -> None:
    engine = tiny_engine("llama")
    whole = engine.run([request(50, 40)])[0]
    stop = whole.text[6:9]
    cut = engine.run([request(50, 40, stop=[stop])])[0]
    assert cut.finish_reason is Finish.STOP
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.tokens == whole.tokens[: len(cut.tokens)]


def test_streams_join_to_the_text_and_run_side_by_side() -> None:
    engine = tiny_engine("llama")
    want = [alone("llama", n, 20) for n in (30, 70)]
    a, b = engine.stream(request(30, 20)), engine.stream(request(70, 20))
    pieces: list[list[str]] = [[], []]
    for x in a:
        pieces[0].append(x)
        if (y := next(b, None)) is not None:
            pieces[1].append(y)
    pieces[1].extend(b)
    assert ["".join(p) for p in pieces] == [w.text for w in want]
    assert len(pieces[0]) > 3
    assert [a.generation.tokens, b.generation.tokens] == [w.tokens for w in want]


@pytest.mark.parametrize("how", ("close", "cancel", "del", "with"))
def test_leaving_a_stream_gives_its_blocks_back(how: str) -> None:
    engine = tiny_engine("llama")
    r = request(70, 200)
    stream = engine.stream(r)
    first = next(stream)
    assert used(engine) > 0
    if how == "close":
        stream.close()
        stream.close()
    elif how == "cancel":
        r.cancel()
        rest = "".join(stream)
        assert stream.generation.text == first + rest
    elif how == "with":
        with pytest.raises(RuntimeError), stream:
            raise RuntimeError
    else:
        del stream
        engine.sweep()
    assert used(engine) == 0
    assert r.result().finish_reason is Finish.CANCELLED
    assert engine.run([request(70, 5)])[0].tokens == alone("llama", 70, 5).tokens


def test_ctrl_c_leaves_engine_and_pool_usable() -> None:
    engine = tiny_engine("llama", chunk=8)
    seen: list[int] = []

    def interrupt(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        engine.run([request(100, on_prefill=interrupt), request(50)])
    assert used(engine) == 0
    assert not engine.busy
    assert engine.run([request(100, 5)])[0].tokens == alone("llama", 100, 5).tokens


def test_a_real_signal_during_decode() -> None:
    engine = tiny_engine("llama", context=4000, max_tokens=4096)
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            engine.run([request(10, 3900)])
    timer.join()
    assert used(engine) == 0
    assert engine.run([request(30, 5)])[0].tokens == alone("llama", 30, 5).tokens


def test_progress_of_a_long_prefill() -> None:
    seen: list[tuple[int, int]] = []
    tiny_engine("llama", chunk=64).run([request(200, 2, on_prefill=lambda done, total: seen.append((done, total)))])
    assert seen == [(64, 200), (128, 200), (192, 200), (200, 200)]


def test_a_given_sequence_is_continued_and_stays_the_callers() -> None:
    engine, ids = tiny_engine("llama"), random_ids(100)
    sequence = Sequence(engine.pool)
    engine.run([make_request(ids, sequence, max_tokens=0)])
    assert sequence.length == 100
    more = ids + random_ids(10, seed=3)
    got = engine.run([make_request(more, sequence, max_tokens=6, ignore_eog=True)])[0]
    assert got.stats.cache_n == 100
    assert got.tokens == tiny_engine("llama").run([make_request(more, max_tokens=6, ignore_eog=True)])[0].tokens
    assert sequence.tokens == more + got.tokens[:-1]
    for bad in (more, ids, random_ids(300, seed=9)):
        with pytest.raises(PromptError, match="does not continue"):
            engine.run([make_request(bad, sequence)])
    sequence.free()
    assert used(engine) == 0


@pytest.mark.parametrize(
    "options",
    (
        {"max_tokens": -1},
        {"max_tokens": True},
        {"temperature": float("nan")},
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": float("inf")},
        {"repetition_penalty": 0},
        {"penalty_window": -5},
        {"seed": -1},
        {"seed": 2**64},
        {"stop": [""]},
        {"stop": [str(i) for i in range(65)]},
        {"stop": [3]},
        {"temprature": 1.0},
    ),
)
def test_bad_options_are_named(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        make_request([1], **options)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(PromptError, match="at least one"):
        make_request([])


@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_the_same_prompt_again_and_again_among_others(name: str) -> None:
    # A small pool, so blocks of ended sequences are recycled between the repetitions.
    engine = tiny_engine(name, max_tokens=448)
    want = alone(name, 200).tokens
    for i in range(6):
        other = engine.stream(request(100 + i, 30))
        next(other)
        assert engine.run([request(200)])[0].tokens == want
        assert "".join(other) != ""
    assert sum(m.counters["evicted"] for m in engine.pool.managers) > 0


@pytest.mark.parametrize(("op", "penalty"), [("greedy", 1.0), ("head", 1.1)])
def test_logits_that_are_not_finite_never_become_a_token(op: str, penalty: float, monkeypatch) -> None:
    engine = tiny_engine("llama")
    ops = engine.runner.transformer.ops
    real, calls = getattr(ops, op), []
    want = engine.run([request(20, 10, repetition_penalty=penalty)])[0].tokens
    free = used(engine)

    def broken(*args, **kwargs):
        calls.append(1)
        found = real(*args, **kwargs)
        if len(calls) == 3:
            (found.logits if op == "greedy" else found)[0, ...] = np.nan
        return found

    monkeypatch.setattr(ops, op, broken)
    r = request(20, 10, repetition_penalty=penalty)
    with pytest.raises(PolyKVError, match="not finite"):
        engine.run([r])
    assert r.result().tokens == want[:2]
    assert used(engine) == free == 0
    assert engine.run([request(20, 10, repetition_penalty=penalty)])[0].tokens == want


def test_the_repetition_penalty_sees_its_window_only() -> None:
    ops = operations.load("cpu")
    logits = np.array([[3.0, 2.0, 1.0, -1.0]] * 4, np.float32)
    params = [
        SamplingParams(repetition_penalty=p, penalty_window=w) for p, w in ((2.0, 2), (2.0, 1), (1.0, 9), (4.0, 9))
    ]
    histories = [[1, 0, 0, 3], [1, 0, 0, 3], [0, 0], [0, 1, 2, 2]]
    assert choose(ops, logits, params, histories, [0] * 4) == [1, 0, 0, 0]
    assert logits[0].tolist() == [3.0, 2.0, 1.0, -1.0]


def test_the_random_number_of_a_token() -> None:
    draws = np.array([[uniform(seed, i) for i in range(200)] for seed in range(20)])
    assert ((draws >= 0) & (draws < 1)).all()
    assert len(np.unique(draws)) == draws.size
    assert draws.mean() == pytest.approx(0.5, abs=0.02)
    assert np.abs(np.corrcoef(draws)[np.triu_indices(20, 1)]).max() < 0.35
    assert uniform(2**64 - 1, 10**9) != uniform(2**64 - 1, 10**9 + 1)
