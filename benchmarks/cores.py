"""How far two cores are from each other: nanoseconds for a cache line to go from one to the other.

    python benchmarks/cores.py

Some 30 where they have a cache in common, 150 to 200 where they have not (two dies, two sockets). A virtual machine may
be moved from one to the other while it runs, and every step that workers share is slower then.
"""

from __future__ import annotations

import threading
import time

import numba
import numpy as np

from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team_atomic import atomic_add, atomic_load

ROUNDS, TRIES = 5000, 5
# Looks before a player gives up, should the other one have no core.
PATIENCE = 1 << 24


@numba.njit(nogil=True)
def _play(line: np.ndarray, me: int, rounds: int) -> bool:
    at = addr(line)
    for i in range(rounds):
        looks = 0
        while atomic_load(at) != 2 * i + me:
            looks += 1
            if looks > PATIENCE:
                return False
        atomic_add(at, 1)
    return True


def distance() -> float:
    """Nanoseconds from core to core, the least of some tries; NaN when there is one core only."""
    best = np.nan
    for rounds in (1, *[ROUNDS] * TRIES):
        line = np.zeros(32, np.int64)
        other = threading.Thread(target=_play, args=(line, 1, rounds))
        began = time.perf_counter()
        other.start()
        done = _play(line, 0, rounds)
        other.join()
        if done and rounds == ROUNDS:
            best = np.fmin(best, (time.perf_counter() - began) / (2 * rounds) * 1e9)
    return float(best)


if __name__ == "__main__":
    print(f"{distance():.0f} ns from core to core")
