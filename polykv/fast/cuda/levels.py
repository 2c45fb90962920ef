"""Levels of Lloyd-Max types as signed bytes, and the worth of a unit of them, as the attention kernels take them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.types import Codec, Family

# Bytes of levels.
LARGEST = 127


def levels(codec: Codec, head_dim: int) -> tuple[npt.NDArray[np.uint32], float]:
    """Sixteen bytes of levels in four words, and the worth of a unit, in units of the norm or scale of a cell.

    The largest level becomes 127, so a level moves by up to 0.4 % of it, far less than the step between two levels.
    Sixteen levels are kept as magnitudes: eight below zero, eight above (kernels/attend_types.cuh, Turbo4). Types of
    other families have no levels; codes of q4_0 are multiplied by 16.
    """
    if codec.family != Family.LLOYD_MAX:
        return np.zeros(4, np.uint32), 1 / 16 if codec.family == Family.Q4_0 else 1.0
    values = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
    top = float(np.abs(values).max())
    found = np.zeros(16, np.int8)
    found[: len(values)] = np.rint((np.abs(values) if len(values) == 16 else values) / top * LARGEST)
    return found.view(np.uint32), top / LARGEST
