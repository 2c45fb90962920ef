"""One parallel job for many steps.

To wake threads and to wait for them costs microseconds, and a transformer block has a dozen steps, each only a few
times longer than that at batch 1. So a block is one job; inside it, the workers go through the steps ("phases")
together. The work of a phase is cut into chunks, numbered 0, 1, ...; a worker takes the next free one until none is
left, then waits until those that others took are done:

    @kernel()
    def body(argument, desk, worker, workers):
        chunk, done = claim(desk, 0), 0
        while chunk < n0:
            ...                              # chunk `chunk` of phase 0
            chunk, done = claim(desk, 0), done + 1
        finish(desk, 0, done)
        wait(desk, 0, n0)                    # all results of phase 0 are visible from here on
        ...                                  # phase 1 likewise

    team = TEAM
    with team.lock:                          # one job at a time in a process
        team.run(entry(body, 4), argument)   # an integer, usually an address

The calling thread is worker 0. It waits for chunks that others have taken, never for workers that have not come: on a
busy machine, where the operating system runs another program on their core, it does everything alone. (OpenMP, which
numba would use, waits for every thread at the end of every region: with busy neighbours on two cores that took 16 ms,
four time slices, for 0.1 ms of work.) Which worker computes a chunk must not matter to the result.

The other workers are threads that look for jobs for about a millisecond and then sleep. One that finds itself
on the calling thread's core moves away. The lock makes concurrent calls of Python threads take turns; kernels use all
cores anyway.

There is one team per process (`TEAM`), because its workers stand for the processor's cores, of which there is one set.
It holds no results: only threads, counters, and working memory whose contents end with the job.

Ctrl-C may come between any two lines of Python. So `lock` is the interpreter's own lock, which a `with` statement takes
and gives back without a gap, and everything else here is kept such that a line that did not happen costs nothing: a
worker that is called twice wakes up in vain, a thread that is hired twice finds its seat taken and leaves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

from polykv.errors import ConfigError
from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.lines import LINE, aligned
from polykv.fast.cpu.team_atomic import atomic_add, atomic_load, rest
from polykv.fast.cpu.team_serve import MAILBOX, lead, serve
from polykv.types import U8

# Phases of most jobs; each has two counters in cache lines of their own.
PHASES = 16
# Looks for a job before a worker goes to sleep: about a millisecond. Python needs 0.3 to 0.5 ms between the last kernel
# of a step and the first of the next, and to wake a thread costs more than most kernels take.
PATIENCE = 50000


@kernel()
def claim(desk: int, phase: int) -> Any:
    """The next free chunk of a phase."""
    return atomic_add(desk + 2 * LINE * phase, 1)


@kernel()
def finish(desk: int, phase: int, done: int) -> None:
    """Report all chunks that a worker has done in a phase, when it finds none left: once, because the counters travel
    between cores, for hundreds of nanoseconds where these have no cache in common."""
    if done > 0:
        atomic_add(desk + 2 * LINE * phase + LINE, done)


@kernel()
def portion(items: int, workers: int) -> Any:
    """How many short items to take at a time: four portions for each worker."""
    return max(1, items // (4 * workers))


@kernel()
def finished(desk: int, phase: int) -> Any:
    """How many chunks of a phase are done."""
    return atomic_load(desk + 2 * LINE * phase + LINE)


@kernel()
def wait(desk: int, phase: int, chunks: int) -> None:
    """Return when all `chunks` of a phase are done."""
    looks = 0
    while finished(desk, phase) < chunks:
        rest(looks)
        looks += 1


class Seat:
    """Where one worker thread sits. bell: held while the worker has nothing to do; released to wake it."""

    __slots__ = ("asleep", "bell", "taken")

    def __init__(self) -> None:
        self.taken, self.bell, self.asleep = threading.Lock(), threading.Lock(), False
        self.bell.acquire()


class Team:
    """The workers of this process: how many, their counters and memory, and the lock that lets one job run."""

    def __init__(self) -> None:
        self._memory = _addressed(0)
        self.workers = len(processors())
        self.forget()

    def forget(self) -> None:
        """Begin without threads."""
        self.lock = threading.Lock()
        self._counters, self._mailbox = _addressed(2 * LINE * PHASES), _addressed(MAILBOX)
        self._seats: list[Seat] = []

    def run(self, body: int, argument: int, phases: int = PHASES) -> None:
        """Run body(argument, desk, worker, workers), a kernel given by its `entry`, in the workers; the caller holds
        `lock`."""
        if 2 * LINE * phases > self._counters[0].nbytes:
            self._counters = _addressed(2 * LINE * phases)
        counters, desk = self._counters
        counters[: 2 * LINE * phases] = 0
        for i in range(self.workers - 1):
            if i == len(self._seats):
                self._seats.append(Seat())
            seat = self._seats[i]
            if not seat.taken.locked():
                self._hire(i, seat)
            elif seat.asleep and seat.bell.locked():
                seat.bell.release()
        lead(self._mailbox[1], body, argument, self.workers, desk)

    def _hire(self, i: int, seat: Seat) -> None:
        # Compiled (or read from the cache) here: the compiler is for one thread at a time.
        mail = self._mailbox[1]
        serve(mail, 0, 0)
        threading.Thread(target=self._sit, args=(i, seat, mail), name=f"polykv-{i + 1}", daemon=True).start()

    def _sit(self, i: int, seat: Seat, mail: int) -> None:
        """What a worker thread does all its life."""
        if not seat.taken.acquire(blocking=False):
            return
        everywhere = processors()
        while True:
            crowded = serve(mail, i + 1, PATIENCE)
            if crowded >= 0:
                # The system wakes a thread where it was woken from, and on a busy machine leaves it there, in the way
                # of the thread that it should help.
                _move(everywhere - {crowded} or everywhere)
                continue
            # A job that begins between these lines runs without this worker; the next one wakes it.
            seat.asleep = True
            seat.bell.acquire()
            seat.asleep = False

    def memory(self, nbytes: int) -> int:
        """Address of at least nbytes for the job about to run, aligned to a cache line; contents are arbitrary.

        The same memory serves every job and grows to the largest request.
        """
        if nbytes > self._memory[0].nbytes:
            self._memory = _addressed(nbytes)
        return self._memory[1]

    @property
    def nbytes(self) -> int:
        """Working memory held between jobs."""
        return int(self._memory[0].nbytes)


def _addressed(nbytes: int) -> tuple[U8, int]:
    """An aligned array and its address: one object, so that they cannot part."""
    memory = aligned(nbytes)
    return memory, int(memory.ctypes.data)


def _move(where: set[int]) -> None:
    """Let this thread run on the given processors. It stays where it is when they were taken from the process."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, where)


def processors() -> set[int]:
    """Numbers of the processors that this process may use."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))


TEAM = Team()
if sys.platform != "win32":
    # Threads do not survive a fork: the child hires its own.
    os.register_at_fork(after_in_child=TEAM.forget)


def threads() -> int:
    """Workers of a job."""
    return TEAM.workers


def set_threads(n: int) -> None:
    """Use n workers from the next job on. Raises ConfigError for more than the machine has processors."""
    most = len(processors())
    if not 1 <= n <= most:
        raise ConfigError(f"threads must be 1 to {most} on this machine, not {n}")
    # A job of another thread has its memory measured for as many as it began with.
    with TEAM.lock:
        TEAM.workers = n
