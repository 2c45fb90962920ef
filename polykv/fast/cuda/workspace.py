"""Memory of a step: arrays that are written and read again within a layer, the same ones in every layer and every step.

A captured graph writes where it wrote when it was captured. So arrays have room for as many rows as such steps have
from the beginning, and whoever keeps graphs forgets them when one was replaced (`moved`).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.device import cupy


class Workspace:
    """Arrays by name, each as large as the largest that was asked for by it. rows: how many an array has room for at
    least, whatever it is first asked for with. moved: how often an array was replaced by a larger one."""

    def __init__(self, rows: int = 1) -> None:
        self._rows = rows
        self._arrays: dict[str, Any] = {}
        self.moved = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(a.nbytes) for a in self._arrays.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Any:
        """An array of that shape; what another call by that name returned is overwritten."""
        each = prod(shape[1:]) * np.dtype(dtype).itemsize
        have = self._arrays.get(name)
        if have is None or have.nbytes < shape[0] * each:
            self.moved += have is not None
            # A power of two, so that what grows with the lengths of sequences seldom does.
            rows = max(self._rows, 1 << max(0, shape[0] - 1).bit_length())
            have = self._arrays[name] = cupy().empty(max(rows * each, 16), np.uint8)
        return have[: shape[0] * each].view(dtype).reshape(shape)
