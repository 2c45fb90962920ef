"""Rotary position embedding (twin of `polykv.ref.rope`; RoFormer, arXiv 2104.09864, eq. 34)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.results import result
from polykv.types import F32, Angles


@kernel()
def rope_head(x: Any, cos: Any, sin: Any, interleaved: bool) -> None:
    """Rotate one head vector x [D] in place by n_rot/2 angles; dims from n_rot on are left alone."""
    half = cos.shape[0]
    if interleaved:
        for i in range(half):
            a, b = x[2 * i], x[2 * i + 1]
            x[2 * i] = a * cos[i] - b * sin[i]
            x[2 * i + 1] = b * cos[i] + a * sin[i]
    else:
        for i in range(half):
            a, b = x[i], x[i + half]
            x[i] = a * cos[i] - b * sin[i]
            x[i + half] = b * cos[i] + a * sin[i]


@kernel()
def _rows(x: Any, cos: Any, sin: Any, interleaved: bool, out: Any) -> None:
    for r in range(x.shape[0]):
        for h in range(x.shape[1]):
            out[r, h] = x[r, h]
            rope_head(out[r, h], cos[r], sin[r], interleaved)


def rope(x: F32, angles: Angles, *, out: F32 | None = None) -> F32:
    """Rotate the first n_rot dims of x [R, H, D] by the rows' angles."""
    out = result(out, x.shape)
    _rows(np.ascontiguousarray(x), angles.cos, angles.sin, angles.interleaved, out)
    return out
