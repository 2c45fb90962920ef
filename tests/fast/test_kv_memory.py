"""Memory of arenas: heads lie one behind the other, what grows together shares arrays, and nothing is lost."""

from __future__ import annotations

import errno
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from polykv.cache.codecs import codec
from polykv.fast.cpu import kv_alloc, kv_grow, kv_pack, kv_unpack, large_pages
from polykv.fast.cpu.kv_memory import ENOUGH, heads, own
from polykv.fast.cpu.large_pages import LARGE
from polykv.ops import load
from polykv.types import KVArena


def arenas(n: int, n_blocks: int = 3) -> list[KVArena]:
    """Arenas with different codes in them."""
    found = []
    for i in range(n):
        arena = kv_alloc(codec(("q8_0", "turbo3")[i % 2]), n_blocks, 3, 64, 8)
        ids = np.arange(n_blocks, dtype=np.int32)
        data = np.random.default_rng(i).integers(0, 100, kv_pack(arena, ids).shape).astype(np.uint8)
        kv_unpack(arena, ids, data)
        found.append(arena)
    return found


def packed(found: list[KVArena], n_blocks: int = 3) -> list[np.ndarray]:
    return [kv_pack(a, np.arange(n_blocks, dtype=np.int32)) for a in found]


@pytest.mark.parametrize("n_blocks", [1, 63, 5000])
def test_records_of_a_head_follow_each_other(n_blocks: int) -> None:
    found = arenas(2, 1)
    kv_grow(found, n_blocks)
    for arena in found:
        lying = heads(own(arena))
        assert lying.flags.c_contiguous and lying.shape[:2] == (3, n_blocks) and not lying[:, 1:].any()
        assert lying.ctypes.data == arena.fields["data"].ctypes.data


def test_arenas_that_grow_share_arrays_of_limited_size() -> None:
    found, n_blocks = arenas(40), 1200
    before = packed(found)
    kv_grow(found, n_blocks)
    joined: dict[int, int] = {}
    for arena in found:
        whole = heads(own(arena))
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        assert arena.nbytes < ENOUGH / 2 and whole.ctypes.data % LARGE == 0
        joined[id(whole)] = whole.nbytes
    sizes = sorted(joined.values(), reverse=True)
    assert sum(sizes) == sum(a.nbytes for a in found) and len(sizes) >= 3
    assert all(ENOUGH <= size < ENOUGH + found[0].nbytes for size in sizes[:-1])
    for a, b in zip(before, packed(found), strict=True):
        assert np.array_equal(a, b)


def test_growth_that_breaks_off_leaves_every_arena_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found, real, left = arenas(60), large_pages.mmap.mmap, [2]
    before = packed(found)

    def scarce(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(*args, **kwargs)

    monkeypatch.setattr(large_pages.mmap, "mmap", scarce)
    with pytest.raises(MemoryError):
        kv_grow(found, 1000)
    monkeypatch.undo()
    sizes = {a.n_blocks for a in found}
    assert sizes == {3, 1000}
    for a, b in zip(before, packed(found), strict=True):
        assert np.array_equal(a, b)
    kv_grow(found, 800)
    assert {a.n_blocks for a in found} == {800}
    for a, b in zip(before, packed(found), strict=True):
        assert np.array_equal(a, b)


def test_too_much_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        kv_alloc(codec("f32"), 1 << 26, 8, 512, 64)
    found = arenas(2)
    before = packed(found)
    for n_blocks in (1 << 45, 1 << 55):
        with pytest.raises(MemoryError):
            kv_grow(found, n_blocks)
    for a, b in zip(before, packed(found), strict=True):
        assert np.array_equal(a, b)


# A process of its own: what another test has taken and given back would count.
GROWTH = """
from polykv.cache.codecs import codec
from polykv.fast.cpu import kv_alloc, kv_grow

def told(name):
    with open("/proc/self/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith(name))

found, n = [kv_alloc(codec("f16"), 1, 3, 64, 32) for _ in range(24)], 64
kv_grow(found, 2)
before = told("VmRSS:")
while n < 1400:
    kv_grow(found, n)
    for arena in found:
        arena.fields["data"][:] = 1
    n += n // 2
print(sum(a.nbytes for a in found), told("VmHWM:") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_growing_by_halves_takes_no_more_resident_memory_than_the_last_arrays() -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    held, peak = map(int, done.stdout.split())
    # Old arrays that live on beside the new ones, and holes that they leave, would come on top.
    assert held > 8 * ENOUGH and held * 0.95 < peak < held + ENOUGH / 2


def test_arenas_of_another_backend_are_refused() -> None:
    other = load("ref").kv_alloc(codec("q8_0"), 1, 1, 64, 8)
    with pytest.raises(TypeError, match="another backend"):
        kv_grow([other], 2)
