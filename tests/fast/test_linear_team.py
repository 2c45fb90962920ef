"""The worker team: phases end with their chunks, whoever does them."""

from __future__ import annotations

import subprocess
import sys
import time

import numba
import numpy as np
from interrupts import interrupt_at

from polykv.fast.cpu import team
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.linear import address, linear
from polykv.fast.cpu.simd import get_i64, put_i64
from polykv.fast.cpu.team import claim, finish, wait
from polykv.types import Activations, QuantTensor, WeightType

PHASES, CHUNKS = 6, 10


@numba.njit(nogil=True)
def body(job: int, desk: int, worker: int, workers: int) -> None:
    """Chunks of phase p hold the sum of all chunks of phase p - 1, so a phase that starts early gives a wrong sum.

    job: int64 [PHASES, CHUNKS], then the number of chunks that each worker did.
    """
    for p in range(PHASES):
        chunk, done = claim(desk, p), 0
        while chunk < CHUNKS:
            total = 1 if p == 0 else 0
            if p > 0:
                for c in range(CHUNKS):
                    total += get_i64(job + 8 * (CHUNKS * (p - 1) + c))
            put_i64(job + 8 * (CHUNKS * p + chunk), total)
            mine = job + 8 * (CHUNKS * PHASES + worker)
            put_i64(mine, get_i64(mine) + 1)
            chunk, done = claim(desk, p), done + 1
        finish(desk, p, done)
        wait(desk, p, CHUNKS)


WANT = [[CHUNKS**p] * CHUNKS for p in range(PHASES)]


def test_phases_are_ordered() -> None:
    for pause in [0.0] * 200 + [0.001, 0.01]:
        # After a pause the workers are asleep and come late, or not at all.
        time.sleep(pause)
        log = np.zeros(PHASES * CHUNKS + team.threads(), np.int64)
        t = team.TEAM
        with t.lock:
            t.run(entry(body, 4), address(log))
        assert log[: PHASES * CHUNKS].reshape(PHASES, CHUNKS).tolist() == WANT
        assert log[PHASES * CHUNKS :].sum() == PHASES * CHUNKS


def test_fewer_workers() -> None:
    """Hired workers beyond the number asked for stay away."""
    most = team.threads()
    try:
        for n in (most, 1, most):
            team.set_threads(n)
            log = np.zeros(PHASES * CHUNKS + most, np.int64)
            t = team.TEAM
            with t.lock:
                t.run(entry(body, 4), address(log))
            assert log[PHASES * CHUNKS :][n:].sum() == 0
    finally:
        team.set_threads(most)


def test_workers_one_after_another_do_not_wait_for_each_other() -> None:
    """When the others come after the first has done everything, they find nothing left, and nobody hangs."""
    log, desk = np.zeros(PHASES * CHUNKS + 5, np.int64), np.zeros(2 * team.LINE * team.PHASES // 8, np.int64)
    for worker in range(5):
        body(address(log), address(desk), worker, 5)
    assert log[PHASES * CHUNKS :].tolist() == [PHASES * CHUNKS, 0, 0, 0, 0]
    assert log[: PHASES * CHUNKS].reshape(PHASES, CHUNKS).tolist() == WANT


def test_a_forked_child_hires_its_own_workers() -> None:
    """Threads do not survive a fork; a pool of them that hung there would hang multiprocessing and servers."""
    code = """
import os, numpy as np
from polykv.fast.cpu import linear
from polykv.types import Activations, QuantTensor, WeightType
w = QuantTensor(WeightType.F32, np.ones((64, 32), np.float32).view(np.uint8), 32)
x = np.ones((3, 32), np.float32)
linear(x, w, activations=Activations.F32)
child = os.fork()
ok = bool((linear(x, w, activations=Activations.F32) == 32).all())
if child == 0:
    os._exit(0 if ok else 1)
assert ok and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", code], check=True, timeout=120)


def test_memory_is_kept_and_grows() -> None:
    t = team.TEAM
    with t.lock:
        first = t.memory(1000)
        assert first % 64 == 0 and t.memory(10) == first
        held = t.nbytes
        t.memory(held + 1)
        assert t.nbytes > held
        assert t.memory(held) == t.memory(1)


def test_an_interrupt_at_any_line_leaves_the_team_usable():
    x, w = np.ones((2, 64), np.float32), QuantTensor(WeightType.F32, np.zeros((3, 256), np.uint8), 64)
    want = linear(x, w, activations=Activations.F32)
    for n in range(200):
        if not interrupt_at(n, lambda: linear(x, w, activations=Activations.F32), ("/fast/cpu/",)):
            break
        assert not team.TEAM.lock.locked(), n
    assert 10 < n < 199
    np.testing.assert_array_equal(linear(x, w, activations=Activations.F32), want)


@numba.njit(nogil=True)
def where(job: int, desk: int, worker: int, workers: int) -> None:
    """Say where the counters are."""
    put_i64(job, desk)


def test_an_interrupt_while_counters_grow_leaves_no_job_with_the_old_ones() -> None:
    found, code = np.zeros(1, np.int64), entry(where, 4)

    def counted(t: team.Team, phases: int) -> int:
        t.run(code, address(found), phases)
        return int(found[0])

    for n in range(100):
        t = team.Team()
        t.workers = 1
        first = counted(t, PHASES)
        # Kept, so that nothing else can come to lie there.
        old = vars(t).copy()
        if not interrupt_at(n, lambda t=t: counted(t, 1000), ("/fast/cpu/team.py",)):
            break
        assert counted(t, 1000) != first, n
    assert old and 3 < n < 99
