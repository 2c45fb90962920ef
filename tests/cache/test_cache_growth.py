"""Growing a pool never holds the whole cache twice: one array at a time is copied."""

from __future__ import annotations

import tracemalloc
import weakref

import numpy as np
import pytest
from case_base import HOSTS
from fakes import make_pool, model

from polykv.fast.cpu import kv_memory
from polykv.fast.cpu.kv_memory import ENOUGH
from polykv.fast.cpu.large_pages import zeroed
from polykv.ops import load
from polykv.types import U8


class Mapped:
    """In place of `zeroed`: counts the bytes that are out of its arrays, which tracemalloc does not see."""

    def __init__(self) -> None:
        self.bytes = self.highest = 0

    def __call__(self, nbytes: int) -> U8:
        array = zeroed(nbytes)
        self.bytes += nbytes
        weakref.finalize(array, self.gone, nbytes)
        # NumPy's highest is not that of this moment, but no higher than what is counted.
        self.highest = max(self.highest, self.bytes + tracemalloc.get_traced_memory()[1])
        return array

    def gone(self, nbytes: int) -> None:
        self.bytes -= nbytes


@pytest.mark.parametrize("backend", HOSTS)
@pytest.mark.parametrize(("tier", "n"), [("f32", 200), ("q8_0/turbo3", 1600)])
def test_growth_holds_one_array_twice_and_no_more(
    backend: str, tier: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, mapped = 12, Mapped()
    monkeypatch.setattr(kv_memory, "zeroed", mapped)
    pool = make_pool(load(backend), model((0,) * layers, n_kv=4), tier=tier, max_tokens=3 * n * 32)
    arenas = [a for kv in map(pool.layer, range(layers)) for a in (kv.k, kv.v)]
    # NumPy reports its arrays to tracemalloc, `mapped` counts the others: real ones. A first growth outside imports
    # and compiles whatever it takes.
    pool.reserve(0, 2)
    tracemalloc.start()
    try:
        pool.reserve(0, 2 * n)
        for mark, arena in enumerate(arenas):
            for field in arena.fields.values():
                field[2 * n - 1] = mark
        small, largest = pool.nbytes, max(a.nbytes for a in arenas)
        tracemalloc.reset_peak()
        mapped.highest = 0
        pool.reserve(0, 3 * n)
        peak = max(mapped.highest, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    # The bound lies far below both caches at once, or the test would show nothing.
    twice = ENOUGH + largest if backend == "cpu" else largest  # of cpu, arrays hold several arenas
    bound = pool.nbytes + twice + 100_000
    assert pool.nbytes == small * 3 // 2 and bound < (small + pool.nbytes) * 3 // 4
    assert pool.nbytes < peak <= bound
    for mark, arena in enumerate(arenas):
        for field in arena.fields.values():
            assert np.all(field[2 * n - 1] == mark) and not field[2 * n :].any()
