"""Two predictions of the same positions: how far apart they are.

p is the prediction with exact K/V, q with a compressed pair, both over the whole vocabulary:

    KL(p || q) = sum_i p_i (log p_i - log q_i)    in nats, per position; no term is left out
    same top     whether the likeliest token is the same (the first of equals)
    nll          -log of the probability of the token that follows in the text; perplexity is exp of its mean
    delta p      probability of that token with q, minus that with p

Figures and errors are those of llama.cpp's perplexity tool; that stores p in 16 bits and leaves out tokens below e^-16,
here p is kept in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.evals.statistics import quantiles, standard_error
from polykv.evals.windows import Window
from polykv.measure.quality import divergence
from polykv.types import F32

F64 = npt.NDArray[np.float64]
PERCENTILES = (0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01)


@dataclass(frozen=True, eq=False)
class Positions:
    """Figures of one pair at every scored position: float64, and bool for `same`. base_nll: of the exact run."""

    nll: F64
    base_nll: F64
    kl: F64
    same: npt.NDArray[np.bool_]

    @staticmethod
    def join(parts: list[Positions]) -> Positions:
        """One after the other."""
        return Positions(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("nll", "base_nll", "kl", "same")))


def nll(log_p: F32, following: npt.NDArray[np.int64]) -> F64:
    """-log p of the tokens that follow, from log-probabilities [T, V]."""
    return -log_p[np.arange(len(following)), following].astype(np.float64)


def positions(base: F32, weights: F32, mine: F32, following: npt.NDArray[np.int64]) -> Positions:
    """Compare log-probabilities [T, V] of the exact run (weights = exp(base)) with those of a pair."""
    return Positions(
        nll(mine, following),
        nll(base, following),
        divergence(base, mine, weights),
        base.argmax(axis=1) == mine.argmax(axis=1),
    )


def perplexity(nll: F64) -> tuple[float, float]:
    """exp(mean nll) and its standard error; infinite when it is beyond all floats.

    >>> perplexity(np.log([2.0, 2.0]))
    (2.0, 0.0)
    """
    mean = nll.mean()
    # The largest power of e that a float holds is 709.
    value = math.exp(mean) if mean < 709 else math.inf if mean >= 709 else math.nan
    return value, value * standard_error(nll)


def figures(p: Positions) -> dict[str, Any]:
    """All figures of a pair as one JSON-serialisable cell."""
    ppl, ppl_error = perplexity(p.nll)
    # The runs see the same tokens, so the error of the ratio is that of the paired differences.
    ratio, delta = p.nll - p.base_nll, np.exp(-p.nll) - np.exp(-p.base_nll)
    same = float(p.same.mean())
    n = p.same.size
    names = [f"p{100 * q:g}" for q in PERCENTILES]
    return {
        "positions": n,
        "ppl": ppl,
        "ppl_error": ppl_error,
        "ln_ppl_ratio": float(ratio.mean()),
        "ln_ppl_ratio_error": standard_error(ratio),
        "kld": float(p.kl.mean()),
        "kld_error": standard_error(p.kl),
        "kld_max": float(p.kl.max()),
        "kld_quantiles": dict(zip(names, quantiles(p.kl, PERCENTILES), strict=True)),
        "same_top": same,
        "same_top_error": math.sqrt(same * (1 - same) / (n - 1)) if n > 1 else math.inf,
        "delta_p": float(delta.mean()),
        "delta_p_rms": float(np.sqrt((delta**2).mean())),
        "delta_p_quantiles": dict(zip(names, quantiles(delta, PERCENTILES), strict=True)),
    }


def by_depth(p: Positions, windows: Seq[Window], buckets: int = 8) -> list[dict[str, float]]:
    """Divergence by how many tokens stand before the prediction: {from, to, kld} of equal parts of the scored half."""
    depth = np.concatenate([np.arange(w.first, w.first + w.scored) for w in windows]) + 1
    edges = np.linspace(depth.min(), depth.max() + 1, buckets + 1).round().astype(int)
    parts = [(int(a), int(b), (depth >= a) & (depth < b)) for a, b in pairwise(edges)]
    return [{"from": a, "to": b - 1, "kld": float(p.kl[inside].mean())} for a, b, inside in parts if inside.any()]
