"""merge: combine attention results over disjoint sets of keys.

    lse = log sum_s exp(lse_s)        out = sum_s exp(lse_s - lse) * out_s

Exact, because a softmax over a union of sets is the average of the softmaxes over the sets, weighted by their
denominators exp(lse_s). A set without a visible key has lse_s = -inf and weight 0; NaN in one part is NaN in the whole,
so that a broken result cannot pass for an empty one. Source: Milakov and Gimelshein, "Online normalizer calculation for
softmax"; Dao et al., FlashAttention.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.ref.weights import give
from polykv.types import F32

F64 = npt.NDArray[np.float64]


def merge(outs: F32, lses: F32, *, out: F32 | None = None) -> tuple[F32, F32]:
    """outs [S, R, H, D], lses [S, R, H] -> out [R, H, D], lse [R, H]."""
    y, lse = combine(outs.astype(np.float64), lses.astype(np.float64))
    return give(y.astype(np.float32), out), lse.astype(np.float32)


def combine(outs: F64, lses: F64) -> tuple[F64, F64]:
    """The same in float64."""
    top = np.max(lses, axis=0, initial=-np.inf)
    # Where nothing was seen top is -inf, and -inf - -inf would be NaN.
    weights = np.exp(lses - np.where(np.isfinite(top), top, 0.0))
    total = np.sum(weights, axis=0)
    seen = total != 0
    mixed = np.sum(weights[..., None] * outs, axis=0)
    y = np.divide(mixed, total[..., None], out=np.zeros_like(mixed), where=seen[..., None])
    lse = np.log(total, out=np.full_like(total, -np.inf), where=seen) + np.where(seen, top, 0.0)
    return y, lse
