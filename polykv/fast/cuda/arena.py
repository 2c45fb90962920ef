"""Large pieces of memory straight from the driver, handed out from their start: weights of a model, K/V of layers.

CuPy's pool keeps what it was given once, for whatever comes next. A piece goes back to the driver when the last array
in it is gone, so an array that is replaced by a larger one is not held twice.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.errors import CapacityError
from polykv.fast.cuda.device import cupy

# Arrays begin at multiples of it, and the driver rounds pieces up to PAGE.
ALIGNED, PAGE = 256, 2 << 20


def aligned(nbytes: int) -> int:
    """Bytes that an array of so many takes in a piece."""
    return -(-nbytes // ALIGNED) * ALIGNED


def paged(nbytes: int) -> int:
    """Bytes that the driver takes for a piece."""
    return -(-nbytes // PAGE) * PAGE


def from_driver(nbytes: int) -> Any:
    """A pointer to so many bytes that are in no pool."""
    cp = cupy()
    return cp.cuda.MemoryPointer(cp.cuda.Memory(nbytes), 0)


def no_room(need: str) -> CapacityError:
    """What a user is told when the device has no memory left."""
    free = cupy().cuda.runtime.memGetInfo()[0]
    return CapacityError(
        f"the GPU has {free / 1e6:,.0f} MB left, and {need}: use a shorter context (--ctx), fewer bits (--kv) or fewer "
        "agents; `polykv plan --backend cuda` says what fits"
    )


class Arena:
    """A piece of memory; source: where it comes from. Raises CapacityError when the device has not so much left."""

    def __init__(self, nbytes: int, source: Callable[[int], Any] = from_driver) -> None:
        cp = cupy()
        try:
            pointer = source(max(nbytes, 1))
        except (cp.cuda.runtime.CUDARuntimeError, MemoryError) as e:
            raise no_room(f"{nbytes / 1e6:,.0f} MB are needed") from e
        self._data = cp.ndarray((nbytes,), np.uint8, memptr=pointer)
        self._at = 0

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> Any:
        """The next array of the piece, C-contiguous, with whatever it holds."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        part = self._data[self._at : self._at + nbytes]
        if part.nbytes != nbytes:
            raise ValueError(f"an array of {nbytes} bytes where the piece has {part.nbytes} left")
        self._at += aligned(nbytes)
        return part.view(dtype).reshape(shape)
