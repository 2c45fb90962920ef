"""rms_norm (twin of `polykv.ref.norm`)."""

from __future__ import annotations

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.types import F32


def rms_norm(x: F32, weight: F32, eps: float, *, out: F32 | None = None) -> F32:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; any leading shape."""
    cols = check("x", x, np.float32).shape[-1]
    y: F32 = output(out, x.shape)
    rows = x.size // max(cols, 1)
    made = kernel("norm.cu", "rms_norm")
    launch(made, (rows,), (256,), (y, x, check("weight", weight, np.float32, cols), cols, np.float64(eps)))
    return y
