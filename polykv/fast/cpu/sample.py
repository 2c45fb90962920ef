"""Choosing tokens (twin of `polykv.ref.sampling`) without sorting the vocabulary.

The candidates that decide a draw are few, so the largest logits are taken out in growing numbers by partition until
they suffice; only those are sorted. Ties are ordered by id in every step, as a stable full sort would.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.types import F32, I32

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

FIRST = 256


def penalize(logits: F32, recent: list[I32], penalty: F32, *, out: F32 | None = None) -> F32:
    """Logits [R, V] of the ids in recent[r] are divided by penalty[r] when positive, multiplied when negative.

    >>> penalize(np.float32([[2.0, -2.0, 1.0]]), [np.int32([0, 1, 1])], np.float32([2.0]))
    array([[ 1., -4.,  1.]], dtype=float32)
    """
    if out is None:
        out = logits.copy()
    elif out is not logits:
        np.copyto(out, logits)
    for r, ids in enumerate(recent):
        old = logits[r, ids]
        out[r, ids] = np.where(old > 0, old / penalty[r], old * penalty[r])
    return out


def sample(logits: F32, temperature: F32, top_k: I32, top_p: F32, min_p: F32, u: npt.NDArray[np.float64]) -> I32:
    """One token id per row of logits [R, V]; temperature 0 takes the largest logit (lowest id on ties)."""
    tokens = np.empty(logits.shape[0], np.int32)
    for r, row in enumerate(logits):
        if temperature[r] == 0:
            tokens[r] = np.argmax(row)
            continue
        ids = _candidates(row, int(top_k[r]), float(top_p[r]), float(min_p[r]))
        tokens[r] = _draw(row, ids, float(temperature[r]), float(u[r]))
    return tokens


def _largest(row: F32, n: int) -> I64:
    """Ids of the n largest logits, by descending logit, then ascending id."""
    if n >= row.size:
        return np.argsort(-row, kind="stable")
    ids = np.flatnonzero(row >= np.partition(row, row.size - n)[row.size - n])
    return ids[np.argsort(-row[ids], kind="stable")][:n]


def _candidates(row: F32, top_k: int, top_p: float, min_p: float) -> I64 | None:
    """Sorted ids that the filters leave; None when no filter is on."""
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        return None
    limit = min(top_k, row.size) if top_k > 0 else row.size
    kept = _largest(row, limit) if top_k > 0 else None
    e = _exp(row if kept is None else row[kept], float(row.max()), 1.0)
    total = float(e.sum())
    n = limit if kept is not None else FIRST
    while True:
        ids = kept if kept is not None else _largest(row, n)
        p = (e if kept is not None else e[ids]) / total
        cumulated = np.cumsum(p)
        # Sorted by descending probability, so enough are there once both filters cut among them.
        if n >= limit or (top_p < 1 and cumulated[-1] >= top_p) or p[-1] < min_p * p[0]:
            break
        n *= 8
    if top_p < 1:
        keep = int(np.searchsorted(cumulated, top_p, side="left")) + 1
        ids, p = ids[:keep], p[:keep]
    return ids[p >= min_p * p[0]] if min_p > 0 else ids


def _exp(logits: F32, top: float, temperature: float) -> F64:
    """exp of (logits - top) / temperature in float64."""
    x = logits.astype(np.float64) / temperature
    x -= top / temperature
    return np.exp(x, out=x)


def _draw(row: F32, ids: I64 | None, temperature: float, u: float) -> int:
    """The first candidate whose cumulated probability exceeds u."""
    if ids is not None:
        e = _exp(row[ids], float(row[ids[0]]), temperature)
        at = int(np.searchsorted(np.cumsum(e / e.sum()), u, side="right"))
        return int(ids[min(at, len(ids) - 1)])
    e = _exp(row, float(row.max()), temperature)
    total, n = float(e.sum()), FIRST
    while True:
        ids = _largest(row, n)
        cumulated = np.cumsum(e[ids] / total)
        if cumulated[-1] > u or n >= row.size:
            return int(ids[min(int(np.searchsorted(cumulated, u, side="right")), len(ids) - 1)])
        n *= 8
