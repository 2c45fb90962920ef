"""One parallel region for many phases.

Entering a numba parallel region costs several microseconds, and a transformer block has a dozen steps, each only a few
times longer than that at batch 1. So a block is one region; inside it, the workers go through the steps ("phases")
together. The work of a phase is cut into chunks, numbered 0, 1, ...; a worker takes the next free one until none is
left, then waits until those that others took are done:

    @kernel(parallel=True)
    def region(n_workers, desk, ...):
        for worker in prange(n_workers):
            body(worker, desk, ...)

    @kernel()
    def body(worker, desk, ...):
        chunk = claim(desk, 0)
        while chunk < n0:
            ...                              # chunk `chunk` of phase 0
            chunk = finish_and_claim(desk, 0)
        wait(desk, 0, n0)                    # all results of phase 0 are visible from here on
        ...                                  # phase 1 likewise

It is the chunks that are waited for, never the workers: when the runtime starts the workers one after another, the
first does everything and the others find nothing left. Which worker computes a chunk must not matter to the result.

`desk` is the address of the counters, zeroed before the region. From Python:

    with team.enter() as t:                  # one region at a time in a process
        region(t.workers, t.desk, t.memory(nbytes), ...)

The lock makes concurrent calls of Python threads take turns; kernels use all cores anyway.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import numba
import numpy as np
from llvmlite import ir

from polykv.errors import ConfigError
from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import I32, I64, Addr, at, call, features, op, types
from polykv.types import U8

# Phases of one region; each has two counters in cache lines of their own.
PHASES = 16
LINE = 64
# Spins before a waiting worker offers its core to others (a few microseconds).
SPINS = 2000


@op(types.int64, Addr, types.int64)
def atomic_add(b: Any, p: Any, x: Any) -> Any:
    """Add x to the int64 at p; returns the value before. Orders all memory accesses around it."""
    return b.atomic_rmw("add", at(b, p, I64), x, "seq_cst")


@op(types.int64, Addr)
def atomic_load(b: Any, p: Any) -> Any:
    """The int64 at p, with everything that was written before it was set."""
    return b.load_atomic(at(b, p, I64), "acquire", 8)


@op(types.void)
def pause(b: Any) -> None:
    """Tell the core that this is a waiting loop."""
    if "x86_64" in features():
        call(b, "llvm.x86.sse2.pause", ir.VoidType())
    elif features() & {"aarch64", "arm64"}:
        call(b, "llvm.aarch64.hint", ir.VoidType(), I32(1))


_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@kernel()
def claim(desk: int, phase: int) -> Any:
    """The next free chunk of a phase."""
    return atomic_add(desk + 2 * LINE * phase, 1)


@kernel()
def finish_and_claim(desk: int, phase: int) -> Any:
    """Report the chunk in hand as done and take the next."""
    atomic_add(desk + 2 * LINE * phase + LINE, 1)
    return atomic_add(desk + 2 * LINE * phase, 1)


@kernel()
def wait(desk: int, phase: int, chunks: int) -> None:
    """Return when all `chunks` of a phase are done."""
    spins = 0
    while atomic_load(desk + 2 * LINE * phase + LINE) < chunks:
        spins += 1
        if spins < SPINS:
            pause()
        else:
            _sched_yield()


class Team:
    """The workers of this process: how many, their counters and memory, and the lock that lets one region run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = _aligned(2 * LINE * PHASES)
        self._memory, self._address = _aligned(0), 0
        self.desk = int(self._counters.ctypes.data)
        self.workers = numba.get_num_threads()

    def __enter__(self) -> Team:
        self._lock.acquire()
        self._counters.fill(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.release()

    def memory(self, nbytes: int) -> int:
        """Address of at least nbytes for the region about to run, aligned to a cache line; contents are arbitrary.

        The same memory serves every region and grows to the largest request.
        """
        if nbytes > self._memory.nbytes:
            self._memory = _aligned(nbytes)
            self._address = int(self._memory.ctypes.data)
        return self._address

    @property
    def nbytes(self) -> int:
        """Working memory held between regions."""
        return int(self._memory.nbytes)


def _aligned(nbytes: int) -> U8:
    """A zeroed array that begins at a cache line."""
    raw = np.zeros(nbytes + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + nbytes]


TEAM = Team()


def enter() -> Team:
    """The process's team, to be used in a `with` statement around one parallel region."""
    return TEAM


def threads() -> int:
    """Workers of a region."""
    return TEAM.workers


def set_threads(n: int) -> None:
    """Use n workers from now on. Raises ConfigError when numba was started with fewer."""
    most = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    if not 1 <= n <= most:
        raise ConfigError(f"threads must be 1 to {most} on this machine, not {n}")
    numba.set_num_threads(n)
    TEAM.workers = n
