"""Memory of a step: arrays that are written and read again within a layer, the same ones in every layer.

A captured graph writes where it wrote when it was captured, so its arrays must stay: whoever keeps the graph keeps the
workspace.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.device import cupy


class Workspace:
    """Arrays by name; one that is asked for with a larger size than before is made anew."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}
        # Arrays that were too small later: kernels that were captured may use them.
        self._kept: list[Any] = []

    def take(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Any:
        """An array of that shape; what another call by that name returned is overwritten."""
        size = prod(shape) * np.dtype(dtype).itemsize
        have = self._arrays.get(name)
        if have is None or have.nbytes < size:
            if have is not None:
                self._kept.append(have)
            have = self._arrays[name] = cupy().empty(max(size, 16), np.uint8)
        return have[:size].view(dtype).reshape(shape)
