"""Memory in large pages: begins at one, is zero, and takes no more than it is asked for."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from polykv.fast.cpu import large_pages
from polykv.fast.cpu.large_pages import LARGE, zeroed

SIZES = [0, 1, 4096, LARGE - 1, LARGE, LARGE + 1, 5 * LARGE + 12345]


def told(first: int, last: int) -> dict[str, int]:
    """Rss and AnonHugePages of the mappings that overlap these addresses, in bytes."""
    found, inside = {"Rss:": 0, "AnonHugePages:": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            a, b = (int(x, 16) for x in fields[0].split("-"))
            inside = a < last and first < b
        elif inside and fields[0] in found:
            found[fields[0]] += 1024 * int(fields[1])
    return found


@pytest.mark.parametrize("nbytes", SIZES)
def test_arrays_are_zero_and_begin_at_a_large_page(nbytes: int) -> None:
    array = zeroed(nbytes)
    assert array.shape == (nbytes,) and array.dtype == np.uint8
    assert array.flags.c_contiguous and array.flags.writeable and not array.any()
    assert nbytes == 0 or array.ctypes.data % LARGE == 0
    array[:] = 7
    other = zeroed(nbytes)
    assert not other.any() and np.all(array == 7)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_an_array_takes_its_bytes_and_no_more() -> None:
    array = zeroed(5 * LARGE + LARGE // 2)
    middle = array.ctypes.data + 5 * LARGE
    # Differences: a mapping may be told as one with a neighbour of the same kind.
    before, tail_before = told(array.ctypes.data, middle + LARGE // 2), told(middle, middle + LARGE // 2)
    array[:] = 1
    after, tail = told(array.ctypes.data, middle + LARGE // 2), told(middle, middle + LARGE // 2)
    assert after["Rss:"] - before["Rss:"] == array.nbytes
    if after["AnonHugePages:"] == before["AnonHugePages:"]:
        pytest.skip("this system gives no large pages (AnonHugePages in smaps does not grow)")
    assert tail["AnonHugePages:"] == tail_before["AnonHugePages:"]


def test_a_system_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(large_pages.mmap, "mmap", Plain)
    array = zeroed(3 * LARGE)
    assert array.ctypes.data % LARGE == 0 and not array.any()


def test_other_errors_of_the_system_are_not_called_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(large_pages.mmap, "mmap", refused)
    with pytest.raises(PermissionError):
        zeroed(LARGE)
