"""The worker team: phases end with their chunks, whoever does them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from polykv.fast.cpu import team
from polykv.fast.cpu.team import claim, finish_and_claim, wait


@numba.njit(nogil=True)
def body(worker: int, desk: int, phases: int, chunks: int, log: Any, done: Any) -> None:
    """Each phase doubles what the one before left, so a phase that starts early gives a wrong sum."""
    for p in range(phases):
        chunk = claim(desk, p)
        while chunk < chunks:
            total = 1
            if p > 0:
                total = 0
                for c in range(chunks):
                    total += log[p - 1, c]
            log[p, chunk] = total
            done[worker] += 1
            chunk = finish_and_claim(desk, p)
        wait(desk, p, chunks)


@numba.njit(parallel=True, nogil=True)
def region(workers: int, desk: int, phases: int, chunks: int, log: Any, done: Any) -> None:
    for worker in numba.prange(workers):
        body(worker, desk, phases, chunks, log, done)


def test_phases_are_ordered() -> None:
    for _ in range(200):
        log, done = np.zeros((6, 10), np.int64), np.zeros(team.threads(), np.int64)
        with team.enter() as t:
            region(t.workers, t.desk, 6, 10, log, done)
        assert log.tolist() == [[10**p] * 10 for p in range(6)]
        assert done.sum() == 60


def test_workers_one_after_another_do_not_wait_for_each_other() -> None:
    """A runtime that starts the second worker when the first has returned must not hang."""
    log, done = np.zeros((3, 4), np.int64), np.zeros(5, np.int64)
    with team.enter() as t:
        for worker in range(5):
            body(worker, t.desk, 3, 4, log, done)
    assert done.tolist() == [12, 0, 0, 0, 0]
    assert log.tolist() == [[4**p] * 4 for p in range(3)]


def test_memory_is_kept_and_grows() -> None:
    with team.enter() as t:
        first = t.memory(1000)
        assert first % 64 == 0 and t.memory(10) == first
        held = t.nbytes
        t.memory(held + 1)
        assert t.nbytes > held
        assert t.memory(held) == t.memory(1)
