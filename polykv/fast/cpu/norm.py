"""RMS normalisation (twin of `polykv.ref.norm`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.results import result
from polykv.types import F32


@kernel()
def rms_row(x: Any, weight: Any, eps: float, out: Any) -> None:
    """out [n] = x / sqrt(mean(x^2) + eps) * weight; `out` may be `x`.

    16 partial sums in float64: a fixed order that fills vector registers, and squares that cannot overflow.
    """
    n = x.shape[0]
    part = np.zeros(16, np.float64)
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        for lane in range(16):
            v = np.float64(x[i + lane])
            part[lane] += v * v
    for i in range(whole, n):
        v = np.float64(x[i])
        part[i - whole] += v * v
    total = 0.0
    for lane in range(16):
        total += part[lane]
    scale = np.float32(1.0 / np.sqrt(total / n + eps))
    for i in range(n):
        out[i] = x[i] * scale * weight[i]


@kernel()
def _rows(x: Any, weight: Any, eps: float, out: Any) -> None:
    for r in range(x.shape[0]):
        rms_row(x[r], weight, eps, out[r])


def rms_norm(x: F32, weight: F32, eps: float, *, out: F32 | None = None) -> F32:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; any leading shape."""
    out = result(out, x.shape)
    n = x.shape[-1]
    _rows(np.ascontiguousarray(x).reshape(-1, n), weight, eps, out.reshape(-1, n))
    return out
