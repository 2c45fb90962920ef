"""Python threads that share one model take turns and get what they would get alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tiny_llm import DOCUMENT, QUESTIONS, tiny_llm

from polykv.errors import CapacityError


@pytest.fixture(autouse=True)
def switch_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_threads_get_what_they_would_get_alone(model: str) -> None:
    llm = tiny_llm(model, chat=True, kv="q8_0/turbo3")

    def pools(i: int) -> Any:
        with llm.pool(DOCUMENT + str(i % 2)) as pool, pool.fork() as agent:
            answers = [a.tokens for a in pool.ask(QUESTIONS[:2], max_tokens=5)]
            agent.ask(QUESTIONS[2], max_tokens=4)
            agent.trim(agent.turns[-1])
            return answers, agent.ask(QUESTIONS[3], max_tokens=4).tokens

    kinds: list[Callable[[int], Any]] = [
        pools,
        lambda i: llm.generate(f"{i % 3} hello", max_tokens=12, temperature=0.9, seed=i % 3).tokens,
        lambda i: "".join(llm.stream(f"{i % 3} there", max_tokens=12)),
        lambda i: llm.logits(np.arange(5, 60 + i % 3)).tobytes(),
    ]
    jobs = [(kinds[i % len(kinds)], i // len(kinds)) for i in range(40)]
    want = [kind(i) for kind, i in jobs]
    start = threading.Barrier(4)

    def run(part: int) -> list[Any]:
        start.wait()
        return [kind(i) for kind, i in jobs[part::4]]

    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(run, range(4)))
    for part in range(4):
        assert got[part] == want[part::4], part
    llm.engine.sweep()
    assert [m.n_used for m in llm.cache.managers] == [0] * len(llm.cache.managers)
    assert not llm.engine.busy


def at_once(*kinds: Callable[[], Any]) -> list[Any]:
    """Results of functions that run in threads of their own, or what they raised."""
    start = threading.Barrier(len(kinds))

    def run(kind: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return kind()
        except Exception as e:
            return e

    with ThreadPoolExecutor(len(kinds)) as threads:
        return list(threads.map(run, kinds))


def test_an_exception_of_a_callback_is_raised_in_its_own_thread() -> None:
    llm = tiny_llm(chunk=8)
    want = llm.generate("alone " * 20, max_tokens=6).tokens
    where = []

    def broken(done: int, total: int) -> None:
        where.append(threading.get_ident())
        if len(where) > 3:
            raise ZeroDivisionError

    def pool(i: int) -> Any:
        try:
            return llm.pool(f"{i} {DOCUMENT}", on_prefill=broken)
        finally:
            assert threading.get_ident() in where

    for i in range(5):
        where.clear()
        failed, *others = at_once(lambda i=i: pool(i), *[lambda: llm.generate("alone " * 20, max_tokens=6).tokens] * 2)
        assert isinstance(failed, ZeroDivisionError) and len(set(where)) == 1
        assert others == [want, want]
    llm.engine.sweep()
    assert [m.n_used for m in llm.cache.managers] == [0] * len(llm.cache.managers)


def test_a_request_without_room_fails_in_its_own_thread() -> None:
    """The other one waits until it has failed, and then gets its answer."""
    llm = tiny_llm(cache_tokens=64, chunk=8)
    want = llm.generate("alone", max_tokens=6).tokens
    for _ in range(5):
        failed, other = at_once(
            lambda: llm.generate("large " * 40, max_tokens=6), lambda: llm.generate("alone", max_tokens=6).tokens
        )
        assert isinstance(failed, CapacityError)
        assert other == want
