"""rope (twin of `polykv.ref.rope`)."""

from __future__ import annotations

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.types import F32, Angles

THREADS = 128


def rope(x: F32, angles: Angles, *, out: F32 | None = None) -> F32:
    """Rotate the first n_rot dims of x [R, H, D] by the rows' angles; the other dims pass."""
    n, heads, dim = check("x", x, np.float32, -1, -1, -1).shape
    half = check("cos", angles.cos, np.float32, n, -1).shape[1]
    y: F32 = output(out, x.shape)
    made = kernel("rope.cu", "rope", ROPE_INTERLEAVED=int(angles.interleaved))
    # A thread for every pair and for every dim that passes.
    threads = n * heads * (dim - half)
    sines = check("sin", angles.sin, np.float32, n, half)
    launch(made, (-(-threads // THREADS),), (THREADS,), (y, x, angles.cos, sines, n, heads, dim, half))
    return y
