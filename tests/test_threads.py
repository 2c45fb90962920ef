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
