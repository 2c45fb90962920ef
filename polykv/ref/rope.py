"""rope: rotary position embedding.

    (a, b) -> (a cos t - b sin t,  a sin t + b cos t)

for every pair (a, b) of the first n_rot dims, with the angle t = position * frequency of the pair. Pairs are (2i, 2i+1)
when interleaved, else (i, i + n_rot/2). <rope_p(q), rope_s(k)> depends on p - s only. Source: Su et al., "RoFormer".
"""

from __future__ import annotations

import numpy as np

from polykv.ref.weights import give
from polykv.types import F32, Angles


def rope(x: F32, angles: Angles, *, out: F32 | None = None) -> F32:
    """Rotate the first n_rot dims of x [R, H, D] by the rows' angles; the other dims pass."""
    half = angles.cos.shape[1]
    cos = angles.cos[:, None, :].astype(np.float64)
    sin = angles.sin[:, None, :].astype(np.float64)
    if angles.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    y = x.copy()
    a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return give(y, out)
