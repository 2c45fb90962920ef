"""Levels of rotated types as signed bytes, and the worth of a unit of them, as the attention kernels take them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.layout_trellis import table
from polykv.types import Codec, Family

# Bytes of levels.
LARGEST = 127
# What codes of iq4_nl stand for (docs/FORMATS.md).
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def levels(codec: Codec, head_dim: int) -> tuple[npt.NDArray[np.uint32], float]:
    """Sixteen bytes of levels in four words, and the worth of a unit, in units of the norm or scale of a cell. Of
    trellis types the words are a table of two values in a row (layout_trellis.py), of 256 levels halves.

    The largest level becomes 127, so a level moves by up to 0.4 % of it, far less than the step between two levels. Of
    sixteen, eight are below zero and eight above, of which one more has to fit a byte (kernels/attend_types.cuh,
    Sixteen). Scalar types have no levels but iq4_nl; their codes are multiplied by a power of two.
    """
    if codec.family == Family.IQ4_NL:
        return IQ4_NL.view(np.uint32), 1.0
    if not codec.unit_norm:
        # Nibbles with their upper bits are moved up to whole bytes.
        return np.zeros(4, np.uint32), 1 / (256 >> codec.bits) if 4 <= codec.bits <= 6 else 1.0
    values = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
    top = float(np.abs(values).max())
    if codec.family == Family.TRELLIS:
        return table(np.rint(values / top * LARGEST).astype(np.int8), codec.bits), top / LARGEST
    if len(values) == 256:
        return (values / top).astype(np.float16).view(np.uint32), top
    found, largest = np.zeros(16, np.int8), LARGEST - (len(values) == 16)
    found[: len(values)] = np.rint(values / top * largest)
    return found.view(np.uint32), top / largest


def same_table(k: Codec, v: Codec) -> bool:
    """Whether K and V are trellis types with the same codebook."""
    return k.family == v.family == Family.TRELLIS and k.centroids == v.centroids
