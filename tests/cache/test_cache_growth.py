"""Growing a pool never holds the whole cache twice: one array at a time, or some small ones, are copied."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from fakes import make_pool, model

from polykv.fast.cpu.kv_memory import ENOUGH
from polykv.ops import BACKENDS, load


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("tier", "n"), [("f32", 200), ("q8_0/turbo3", 1600)])
def test_growth_holds_one_arena_twice_and_no_more(backend: str, tier: str, n: int) -> None:
    layers = 12
    pool = make_pool(load(backend), model((0,) * layers, n_kv=4), tier=tier, max_tokens=3 * n * 32)
    arenas = [a for kv in map(pool.layer, range(layers)) for a in (kv.k, kv.v)]
    # NumPy reports its arrays to tracemalloc, so this counts real ones. A first growth outside of it imports and
    # compiles whatever that takes.
    pool.reserve(0, 2)
    tracemalloc.start()
    try:
        pool.reserve(0, 2 * n)
        for mark, arena in enumerate(arenas):
            for field in arena.fields.values():
                field[2 * n - 1] = mark
        small, largest = pool.nbytes, max(a.nbytes for a in arenas)
        tracemalloc.reset_peak()
        pool.reserve(0, 3 * n)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The bound lies far below both caches at once, or the test would show nothing.
    twice = 2 * (ENOUGH + largest) if backend == "cpu" else largest  # of cpu, arrays hold several arenas
    bound = pool.nbytes + twice + 100_000
    assert pool.nbytes == small * 3 // 2 and bound < (small + pool.nbytes) * 3 // 4
    assert pool.nbytes < peak <= bound
    for mark, arena in enumerate(arenas):
        for field in arena.fields.values():
            assert np.all(field[2 * n - 1] == mark) and not field[2 * n :].any()
