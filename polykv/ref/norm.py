"""rms_norm: scale a vector to unit mean square.

    y = x / sqrt(mean(x^2) + eps) * w

Source: Zhang and Sennrich, "Root mean square layer normalization". Computed in float64, rounded once.
"""

from __future__ import annotations

import numpy as np

from polykv.ref.weights import give
from polykv.types import F32


def rms_norm(x: F32, weight: F32, eps: float, *, out: F32 | None = None) -> F32:
    """Over the last axis; any leading shape.

    >>> rms_norm(np.array([3.0, 4.0], np.float32), np.ones(2, np.float32), 0.0).round(3)
    array([0.849, 1.131], dtype=float32)
    """
    wide = x.astype(np.float64)
    y = wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps) * weight
    return give(y.astype(np.float32), out)
