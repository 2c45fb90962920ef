"""Combine attention results over disjoint key sets by log-sum-exp (twin of `polykv.ref.merge`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.results import result
from polykv.types import F32


@kernel()
def join(out: Any, lse: Any, more: Any, more_lse: Any) -> Any:
    """Merge the result more [D] over other keys into out [D], in place; returns the log-sum-exp of both."""
    if more_lse == -np.inf:
        return np.float32(lse)
    top = max(np.float64(lse), np.float64(more_lse))
    w = 0.0 if lse == -np.inf else np.exp(lse - top)
    w1 = np.exp(more_lse - top)
    total = w + w1
    f, f1 = np.float32(w / total), np.float32(w1 / total)
    for d in range(out.shape[0]):
        out[d] = out[d] * f + more[d] * f1
    return np.float32(top + np.log(total))


@kernel()
def _merge(outs: Any, lses: Any, out: Any, lse: Any) -> None:
    parts, rows, heads, dims = outs.shape
    acc = np.empty(dims, np.float64)
    for r in range(rows):
        for h in range(heads):
            top = -np.inf
            for s in range(parts):
                top = max(top, np.float64(lses[s, r, h]))
            acc[:] = 0
            total = 0.0
            for s in range(parts):
                # Parts without keys have no weight; NaN does, and so reaches the result.
                if lses[s, r, h] != -np.inf:
                    w = np.exp(lses[s, r, h] - top)
                    total += w
                    if w != 0:
                        for d in range(dims):
                            acc[d] += w * outs[s, r, h, d]
            for d in range(dims):
                out[r, h, d] = acc[d] / total if total != 0 else 0.0
            lse[r, h] = top + np.log(total) if total != 0 else -np.inf


def merge(outs: F32, lses: F32, *, out: F32 | None = None) -> tuple[F32, F32]:
    """outs [S, R, H, D], lses [S, R, H] -> out [R, H, D], lse [R, H]; rows that no part saw get 0 and -inf."""
    out = result(out, outs.shape[1:])
    lse = np.empty(lses.shape[1:], np.float32)
    _merge(np.ascontiguousarray(outs), np.ascontiguousarray(lses), out, lse)
    return out, lse
