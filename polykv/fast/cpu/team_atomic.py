"""Atomic counters, polite waiting and the processor's number, for the workers of `team`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd_core import I32, I64, Addr, at, call, features, op, types

# Looks before a wait turns polite: some 50 microseconds, several times the length of a chunk.
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
_sched_getcpu = types.ExternalFunction("sched_getcpu", types.int32())
KNOWN = sys.platform == "linux"


@kernel()
def rest(looks: int) -> None:
    """Wait a little for a chunk, after so many looks in vain: whoever has it may need this core."""
    if looks < SPINS:
        pause()
    else:
        _sched_yield()


@kernel()
def processor() -> Any:
    """Number of the processor that this thread is on; -1 where the system does not tell."""
    if KNOWN:
        return np.int64(_sched_getcpu())
    return np.int64(-1)
