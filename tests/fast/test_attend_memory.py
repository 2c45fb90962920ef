"""Working memory of attention: what a worker writes lies in what it asked for, whatever meets."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from attend_cases import answer, error, problem

from polykv.cache.codecs import CODECS, VARIANTS
from polykv.fast.cpu import attend
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.team import LINE, TEAM, set_threads, threads

NAMES = (*CODECS, *VARIANTS)
MARK, BEHIND = 0xA5, 1 << 16


class Fence:
    """Stands in for the team's memory, with marked bytes behind what was asked for."""

    def __init__(self) -> None:
        self.held = np.zeros(0, np.uint8)
        self.end = 0

    def memory(self, nbytes: int) -> int:
        self.held = np.full(nbytes + BEHIND + LINE, MARK, np.uint8)
        begin = -address(self.held) % LINE
        self.end = begin + nbytes
        return address(self.held) + begin

    def check(self) -> None:
        beyond = np.flatnonzero(self.held[self.end :] != MARK)
        assert not len(beyond), f"wrote up to {beyond[-1] + 1} bytes beyond its memory"


# Heads with a Hadamard matrix of their own order (16, 24, 40, 64, 72), and heads that rotating fills up to 128.
@pytest.mark.parametrize("dim", (16, 18, 24, 40, 44, 64, 66, 72, 78, 90, 100))
def test_a_worker_stays_in_its_memory(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TEAM, "workers", 1)
    for i, v in enumerate(NAMES):
        for j in range(0, len(NAMES), 5):
            k = NAMES[(i + j) % len(NAMES)]
            p = problem(f"{k}/{v}", 1 + 4 * (i % 2), 2, 1, dim, 70)
            s, fence = p.segments([69 - r for r in range(len(p.q))]), Fence()
            with monkeypatch.context() as patch:
                patch.setattr(TEAM, "memory", fence.memory)
                got, _ = attend(p.q, s, p.kv, scale=dim**-0.5)
            fence.check()
            assert error(got, answer(p.q, s, p.kv, dim**-0.5)[0]) < 1e-4, f"{k}/{v}"


def test_a_job_keeps_the_workers_that_its_memory_was_measured_for() -> None:
    """Another thread that sets their number (it opens a second model, say) waits until the job is done."""
    before = threads()
    setting = threading.Thread(target=set_threads, args=(1,))
    try:
        with TEAM.lock:
            TEAM.workers = 2
            setting.start()
            setting.join(0.2)
            assert TEAM.workers == 2
        setting.join()
        assert TEAM.workers == 1
    finally:
        set_threads(before)
