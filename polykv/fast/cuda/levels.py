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

    Trellis types and short tables are rounded by `as_bytes`. Of sixteen levels eight are below zero and eight above, of
    which one more has to fit a byte (kernels/attend_types.cuh, Sixteen). Scalar types have no levels but iq4_nl; their
    codes are multiplied by a power of two.
    """
    if codec.family == Family.IQ4_NL:
        return IQ4_NL.view(np.uint32), 1.0
    if not codec.unit_norm:
        # Nibbles with their upper bits are moved up to whole bytes.
        return np.zeros(4, np.uint32), 1 / (256 >> codec.bits) if 4 <= codec.bits <= 6 else 1.0
    values = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
    if len(values) == 256 and codec.family != Family.TRELLIS:
        top = float(np.abs(values).max())
        return (values / top).astype(np.float16).view(np.uint32), top
    found, unit = as_bytes(values, LARGEST - (len(values) == 16))
    if codec.family == Family.TRELLIS:
        return table(found, codec.bits), unit
    padded = np.zeros(16, np.int8)
    padded[: len(found)] = found
    return padded.view(np.uint32), unit


def as_bytes(values: npt.NDArray[np.float64], largest: int) -> tuple[npt.NDArray[np.int8], float]:
    """Bytes of levels, and the worth of a unit, with which the squared errors of all levels are least.

    Any unit of which no level is more than `largest` will do, and of some of them all levels are close to whole
    numbers: 16 levels err by 0.35 % of their RMS, 8 by 0.2 %; with `largest` for the largest level, by 0.6 and 0.5 %.
    """
    units = np.abs(values).max() / np.arange(largest / 2, largest + 1 / 64, 1 / 64)[:, None]
    rounded = np.rint(values / units)
    best = int(np.argmin(np.square(rounded * units - values).sum(1)))
    return rounded[best].astype(np.int8), float(units[best, 0])


def same_table(k: Codec, v: Codec) -> bool:
    """Whether K and V are trellis types with the same codebook."""
    return k.family == v.family == Family.TRELLIS and k.centroids == v.centroids
