"""penalize, sample: from logits to a token.

    penalty p    l -> l / p if l > 0, else l * p, for every token that occurred recently
    top-k        keep the k largest logits
    top-p        keep the shortest run of most likely tokens whose probabilities add up to p
    min-p        keep tokens with probability >= p * (largest probability)
    temperature  draw from softmax(l / t) of what is left, by inverting its distribution function at u

The filters look at the distribution before temperature. u comes from outside, so a sequence with its own seed draws the
same tokens in any batch. Sources: Keskar et al., CTRL (penalty); Holtzman et al. (top-p); Nguyen et al. (min-p).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.ref.merge import F64
from polykv.ref.weights import give
from polykv.types import F32, I32


def penalize(logits: F32, recent: list[I32], penalty: F32, *, out: F32 | None = None) -> F32:
    """Logits [R, V] of the ids in recent[r] are made less likely, once however often an id occurs there.

    >>> penalize(np.float32([[2.0, -2.0, 1.0]]), [np.int32([0, 1, 1])], np.float32([2.0]))
    array([[ 1., -4.,  1.]], dtype=float32)
    """
    y = logits.copy()
    for r, ids in enumerate(recent):
        old = logits[r, ids]
        y[r, ids] = np.where(old > 0, old / penalty[r], old * penalty[r])
    return give(y, out)


def sample(logits: F32, temperature: F32, top_k: I32, top_p: F32, min_p: F32, u: npt.NDArray[np.float64]) -> I32:
    """One token id per row of logits [R, V]; temperature 0 takes the largest logit (lowest id on ties)."""
    tokens = np.empty(logits.shape[0], np.int32)
    for r in range(len(tokens)):
        # Whoever draws refuses rows that are not finite, maybe only afterwards.
        if temperature[r] == 0 or not np.isfinite(logits[r].max()):
            tokens[r] = np.argmax(logits[r])
            continue
        ids, p = distribution(logits[r], float(temperature[r]), int(top_k[r]), float(top_p[r]), float(min_p[r]))
        # The first candidate whose cumulated probability exceeds u; rounding may leave the sum just below u.
        at = np.searchsorted(np.cumsum(p), u[r], side="right")
        tokens[r] = ids[min(int(at), len(ids) - 1)]
    return tokens


def distribution(row: F32, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[np.ndarray, F64]:
    """Candidate ids by descending logit, then ascending id, and their probabilities."""
    logits = row.astype(np.float64)
    ids = np.argsort(-logits, kind="stable")
    if top_k > 0:
        ids = ids[:top_k]
    p = softmax(logits[ids])
    if top_p < 1:
        keep = int(np.searchsorted(np.cumsum(p), top_p, side="left")) + 1
        ids, p = ids[:keep], p[:keep]
    if min_p > 0:
        ids = ids[p >= min_p * p[0]]
    return ids, softmax(logits[ids] / temperature)


def softmax(x: F64) -> F64:
    """exp(x) / sum exp(x); x is sorted, so x[0] is the largest."""
    e = np.exp(x - x[0])
    p: F64 = e / e.sum()
    return p
