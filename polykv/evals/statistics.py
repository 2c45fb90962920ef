"""Intervals: how far a figure may be from what more samples would show."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Values = Seq[float] | npt.NDArray[np.floating]
# Resamplings of a bootstrap; its quantiles are then known to about half a percent of probability.
RESAMPLINGS = 4000
Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Interval:
    """A mean with the 95 % interval around it."""

    mean: float
    low: float
    high: float


def wilson(successes: float, n: int, z: float = Z95) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson, JASA 22, 1927). Unlike mean +- error it holds at 0 and at n, for few.

    >>> [round(x, 3) for x in wilson(10, 10)]
    [0.722, 1.0]
    >>> wilson(0, 0)
    (0.0, 1.0)
    """
    if n == 0:
        return 0.0, 1.0
    p, w = successes / n, z * z / n
    centre, half = (p + w / 2) / (1 + w), math.sqrt(p * (1 - p) * w + w * w / 4) / (1 + w)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Values, seed: int = 0) -> Interval:
    """Mean and 95 % interval by bootstrap (percentiles of means of resampled values), for scores of few samples.

    One value says nothing about its spread: the interval is infinite. Raises ValueError for none.

    >>> mean_interval([0.25] * 8)
    Interval(mean=0.25, low=0.25, high=0.25)
    >>> mean_interval([1.0]).low
    -inf
    """
    x = np.asarray(values, np.float64)
    if x.size == 0:
        raise ValueError("no values")
    if x.size == 1:
        return Interval(float(x[0]), -math.inf, math.inf)
    draws = np.random.default_rng(seed).integers(0, x.size, (RESAMPLINGS, x.size))
    low, high = np.quantile(x[draws].mean(axis=1), [0.025, 0.975])
    return Interval(float(x.mean()), float(low), float(high))


def standard_error(values: Values) -> float:
    """Of the mean, of independent values; infinite for fewer than two.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    x = np.asarray(values, np.float64)
    return float(x.std(ddof=1) / math.sqrt(x.size)) if x.size > 1 else math.inf


def quantiles(values: Values, at: Seq[float]) -> list[float]:
    """Quantiles by linear interpolation.

    >>> quantiles([1, 2, 3, 4], [0, 0.5, 1])
    [1.0, 2.5, 4.0]
    """
    return [float(q) for q in np.quantile(np.asarray(values, np.float64), at)]
