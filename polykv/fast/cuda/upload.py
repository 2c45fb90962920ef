"""Small arrays of a step on their way to the device: all of them in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.device import cupy

# Values between the starts of two arrays: 64 bytes.
ALIGNED = 16


class Upload:
    """Arrays of 4-byte values side by side in one array of the device, each with room for so many values.

    arrays(i, shape, dtype) is where kernels read; it stays the same for the life of the object, for graphs.
    """

    def __init__(self, rooms: Sequence[int]) -> None:
        starts = np.concatenate([[0], np.cumsum([-(-n // ALIGNED) * ALIGNED for n in rooms], dtype=np.int64)])
        self._starts: list[int] = starts.tolist()
        cp, n = cupy(), max(int(starts[-1]), 1)
        self._pinned = cp.cuda.alloc_pinned_memory(4 * n)
        self._host = np.frombuffer(self._pinned, np.int32, n)
        self._host[...] = 0
        self._device = cp.zeros(n, np.int32)
        self._sent = cp.cuda.Event(disable_timing=True)
        # CuPy lends pinned memory anew at once, and the last copy may still be under way then.
        finalize(self, self._sent.synchronize).atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes on the device, and as many of pinned memory on the host."""
        return int(self._device.nbytes)

    def array(self, i: int, shape: tuple[int, ...], dtype: npt.DTypeLike = np.int32) -> Any:
        """Array i on the device."""
        n = int(np.prod(shape))
        return self._device[self._starts[i] : self._starts[i] + n].view(dtype).reshape(shape)

    def send(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Copy what the arrays hold, int32 or float32, each to its place; what lies behind it there stays."""
        # The copy before may still be under way.
        self._sent.synchronize()
        for start, a in zip(self._starts, arrays, strict=False):
            self._host[start : start + a.size] = np.ascontiguousarray(a).view(np.int32).reshape(-1)
        stream = cupy().cuda.get_current_stream()
        self._device.data.copy_from_host_async(self._pinned.ptr, self._host.nbytes, stream)
        self._sent.record(stream)
