"""Choosing tokens (twin of `polykv.ref.sampling`) without sorting the vocabulary.

The candidates that decide a draw are few and lie near the largest logit, so those within a growing distance of it are
taken out until they suffice; only those are sorted. Ties are ordered by id, as a stable full sort would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from polykv.results import result
from polykv.types import F32, I32

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# Distances from the largest logit: down to e^-6 of its probability, and so on.
REACH = (6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 32.0, np.inf)


def penalize(logits: F32, recent: list[I32], penalty: F32, *, out: F32 | None = None) -> F32:
    """Logits [R, V] of the ids in recent[r] are divided by penalty[r] when positive, multiplied when negative.

    >>> penalize(np.float32([[2.0, -2.0, 1.0]]), [np.int32([0, 1, 1])], np.float32([2.0]))
    array([[ 1., -4.,  1.]], dtype=float32)
    """
    out = result(out, logits.shape)
    if out is not logits:
        np.copyto(out, logits)
    for r, ids in enumerate(recent):
        old = logits[r, ids]
        out[r, ids] = np.where(old > 0, old / penalty[r], old * penalty[r])
    return out


def sample(logits: F32, temperature: F32, top_k: I32, top_p: F32, min_p: F32, u: npt.NDArray[np.float64]) -> I32:
    """One token id per row of logits [R, V]; temperature 0 takes the largest logit (lowest id on ties)."""
    tokens = np.empty(logits.shape[0], np.int32)
    for r, row in enumerate(logits):
        # Whoever draws refuses rows that are not finite, maybe only afterwards.
        if temperature[r] == 0 or not np.isfinite(row.max()):
            tokens[r] = np.argmax(row)
            continue
        ids = _candidates(row, int(top_k[r]), float(top_p[r]), float(min_p[r]))
        tokens[r] = _draw(row, ids, float(temperature[r]), float(u[r]))
    return tokens


def _nearest(row: F32, enough: Callable[[I64], bool]) -> I64:
    """Ids of the largest logits by descending logit, then ascending id; as many as `enough` wants, or all."""
    top = row.max()
    for reach in REACH:
        ids = np.flatnonzero(row >= top - np.float32(reach))
        if ids.size == row.size or enough(ids):
            break
    return ids[np.argsort(-row[ids], kind="stable")]


def _candidates(row: F32, top_k: int, top_p: float, min_p: float) -> I64 | None:
    """Sorted ids that the filters leave; None when no filter is on."""
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        return None
    if top_k > 0:
        ids = _nearest(row, lambda found: found.size >= top_k)[:top_k]
        p = _exp(row[ids], float(row[ids[0]]), 1.0)
        p /= p.sum()
    else:
        e = _exp(row, float(row.max()), 1.0)
        total = float(e.sum())
        # min_p alone needs every logit above its bound; the largest has e = 1.
        ids = _nearest(row, lambda found: e[found].sum() >= top_p * total if top_p < 1 else e[found].min() < min_p)
        p = e[ids] / total
    if top_p < 1:
        keep = int(np.searchsorted(np.cumsum(p), top_p, side="left")) + 1
        ids, p = ids[:keep], p[:keep]
    return ids[p >= min_p * p[0]] if min_p > 0 else ids


def _exp(logits: F32, top: float, temperature: float) -> F64:
    """exp of (logits - top) / temperature in float64."""
    x = logits.astype(np.float64) / temperature
    x -= top / temperature
    return np.exp(x, out=x)


def _draw(row: F32, ids: I64 | None, temperature: float, u: float) -> int:
    """The first candidate whose cumulated probability exceeds u."""
    if ids is None:
        e = _exp(row, float(row.max()), temperature)
        total = float(e.sum())
        ids = _nearest(row, lambda found: e[found].sum() > u * total)
        cumulated = np.cumsum(e[ids] / total)
    else:
        e = _exp(row[ids], float(row[ids[0]]), temperature)
        cumulated = np.cumsum(e / e.sum())
    # Rounding may leave the sum just below u.
    return int(ids[min(int(np.searchsorted(cumulated, u, side="right")), len(ids) - 1)])
