"""Makes the codebooks of trellis types: generalised Lloyd iterations over best paths.

    states = best paths of y under the codebook        codebook[s] = mean of all y[t] whose state is s

Neither step can raise the squared error, so it falls until it settles in a local minimum; which one depends on where it
began. `stratified` begins well: whatever the class of a state (its low six bits, which a step keeps), its 2^k
successors lie in 2^k different strata of the normal distribution, so that one of them is always near. Sources: Linde,
Buzo and Gray, "An algorithm for vector quantizer design" (1980); Marcellin and Fischer, "Trellis coded quantization"
(1990); Ungerboeck's rule that the branches which leave a state shall be far apart (1982).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from polykv.ref.trellis import States
from polykv.types import F32

# y float32 [n, g], codebook float32 [states], bits -> states of the best paths [n, g].
Search = Callable[[F32, F32, int], States]
# Groups that are searched at a time, so that progress can be shown and memory stays small.
SLAB = 4096


def stratified(bits: int, classes: int, rng: np.random.Generator) -> F32:
    """A codebook float32 [classes << bits] to begin with, in units of a unit-norm vector of 128.

    Its entries are the quantiles (i + 1/2) / n of N(0, 1/128); each class has one of every stratum, in random order.
    """
    symbols = 1 << bits
    stratum = np.stack([rng.permutation(symbols) for _ in range(classes)], axis=1)
    within = np.stack([rng.permutation(classes) for _ in range(symbols)])
    # within[i, class]: place of the class in stratum i.
    place = stratum * classes + np.take_along_axis(within, stratum, axis=0)
    quantile = [NormalDist().inv_cdf((i + 0.5) / (symbols * classes)) for i in range(symbols * classes)]
    return np.asarray(np.array(quantile)[place].ravel() / np.sqrt(128), np.float32)


def improved(codebook: F32, y: F32, bits: int, search: Search) -> tuple[F32, float]:
    """One round on y [n, g]: the new codebook, and the mean squared error per value of the old one.

    States that no path visits keep their value.
    """
    n = len(codebook)
    count, total, error = np.zeros(n), np.zeros(n), 0.0
    for i in range(0, len(y), SLAB):
        states = search(y[i : i + SLAB], codebook, bits).ravel()
        values = y[i : i + SLAB].ravel().astype(np.float64)
        count += np.bincount(states, minlength=n)
        total += np.bincount(states, weights=values, minlength=n)
        error += float(np.square(values - codebook[states]).sum())
    means = np.where(count > 0, total / np.maximum(count, 1), codebook)
    return means.astype(np.float32), error / y.size


def relative_errors(codebook: F32, y: F32, bits: int, search: Search) -> npt.NDArray[np.float64]:
    """|decoded - y|^2 / |y|^2 of every group y [n, g], float64 [n], decoded with the length of y as the format has it
    (its fp16 apart)."""
    errors = np.empty(len(y))
    for i in range(0, len(y), SLAB):
        part = y[i : i + SLAB].astype(np.float64)
        c = codebook[search(y[i : i + SLAB], codebook, bits)].astype(np.float64)
        unit, shape = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (part, c))
        errors[i : i + SLAB] = np.square(unit - shape).sum(axis=1)
    return errors
