"""Levels of rotated types as signed bytes, and the worth of a unit of them, as the attention kernels take them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.layout_trellis import table
from polykv.types import Codec, Family

# Bytes of levels.
LARGEST = 127


def levels(codec: Codec, head_dim: int) -> tuple[npt.NDArray[np.uint32], float]:
    """Sixteen bytes of levels in four words, and the worth of a unit, in units of the norm or scale of a cell. Of
    trellis types the words are a table of two values in a row (layout_trellis.py).

    The largest level becomes 127, so a level moves by up to 0.4 % of it, far less than the step between two levels.
    Sixteen levels are kept as magnitudes: eight below zero, eight above (kernels/attend_types.cuh, Turbo4). Types of
    other families have no levels; codes of q4_0 are multiplied by 16.
    """
    if not codec.unit_norm:
        return np.zeros(4, np.uint32), 1 / 16 if codec.family == Family.Q4_0 else 1.0
    values = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
    top = float(np.abs(values).max())
    if codec.family == Family.TRELLIS:
        return table(np.rint(values / top * LARGEST).astype(np.int8), codec.bits), top / LARGEST
    found = np.zeros(16, np.int8)
    found[: len(values)] = np.rint((np.abs(values) if len(values) == 16 else values) / top * LARGEST)
    return found.view(np.uint32), top / LARGEST


def same_table(k: Codec, v: Codec) -> bool:
    """Whether K and V are trellis types with the same codebook."""
    return k.family == v.family == Family.TRELLIS and k.centroids == v.centroids
