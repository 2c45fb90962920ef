"""Weights asked for before they are needed.

A step of few rows reads every weight once, so memory sets the pace, as long as it is never idle. The processor does not
foresee what kernels read, 8 short rows side by side. But tiles of 8 rows follow each other without a gap, so a product
walks through its weights in order of address, some tiles ahead of itself, a few cache lines for every block that it
computes: in one burst they would fill the queue of outstanding loads and hold up the core. Where its rows end, it goes
on with what the worker will read next, as far as that can be foreseen.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import prefetch
from polykv.fast.cpu.team import finished, wait

LINE = 64
# Bytes between what is asked for and what is read, at least: a tile or more, and longer than memory takes to answer.
AHEAD = 12000


@kernel()
def ahead_of(tile: int) -> Any:
    """Bytes to run ahead, whole tiles of `tile` bytes."""
    return tile * (1 + AHEAD // tile)


@kernel()
def ask(at: int, size: int) -> None:
    """Have `size` bytes brought near. Any address is allowed."""
    for p in range(0, size, LINE):
        prefetch(at + p)


@kernel()
def wait_asking(desk: int, phase: int, chunks: int, at: int, size: int) -> None:
    """`wait` for a phase, and ask for `size` bytes meanwhile."""
    p = 0
    while p < size and finished(desk, phase) < chunks:
        ask(at + p, 2 * LINE)
        p += 2 * LINE
    wait(desk, phase, chunks)
