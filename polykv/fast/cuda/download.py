"""Results of a step on their way to the host, while later kernels are begun already.

`asnumpy` waits for everything that was begun before it is called. Here a copy into pinned memory is begun, and an event
after it: only that is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.arrays import asnumpy
from polykv.fast.cuda.device import cupy

# Bytes of a place: ids and logits of as many rows as a graph has. Larger results are copied when they are asked for.
PLACE = 4096


class Place:
    """Pinned memory for one result at a time."""

    def __init__(self) -> None:
        cp = cupy()
        self._pinned = cp.cuda.alloc_pinned_memory(PLACE)
        self._host = np.frombuffer(self._pinned, np.uint8, PLACE)
        self._arrived = cp.cuda.Event(disable_timing=True)
        # CuPy lends pinned memory anew at once, and a copy that nobody waited for may still be under way then.
        finalize(self, self._arrived.synchronize).atexit = False

    def begin(self, x: Any) -> None:
        """Copy x here, once what writes it is done."""
        stream = cupy().cuda.get_current_stream()
        x.data.copy_to_host_async(self._pinned.ptr, x.nbytes, stream)
        self._arrived.record(stream)

    def end(self, x: Any) -> npt.NDArray[Any]:
        """What x held, on the host."""
        self._arrived.synchronize()
        found: npt.NDArray[Any] = self._host[: x.nbytes].view(x.dtype).reshape(x.shape).copy()
        return found


@cache
def _free(_: int) -> deque[Place]:
    """Places of a device that nobody uses."""
    return deque()


def begin_fetch(x: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
    """Begin to bring x to NumPy; what is returned waits for it, once."""
    if isinstance(x, np.ndarray):
        return lambda: x
    if x.nbytes > PLACE or not x.flags.c_contiguous:
        return lambda: asnumpy(x)
    free = _free(cupy().cuda.runtime.getDevice())
    try:
        place = free.popleft()
    except IndexError:
        place = Place()
    place.begin(x)

    def end() -> npt.NDArray[Any]:
        found = place.end(x)
        free.append(place)
        return found

    return end
