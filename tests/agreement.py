"""How results of two backends are compared: one number per case, judged by the operation's agreement class."""

from __future__ import annotations

import numpy as np

from polykv.ops import Agreement

# Below this magnitude float32 has no relative precision left (denormals and their neighbourhood).
FLOOR = 2.0**-100
# Paths of trellis types on a GPU, whose costs are rounded (tests/cuda/test_paths_host.py): relative excess of a vector's
# squared error where it has another path than that of the reference. Such a path has another length too, so its norm
# may be rounded to the next float16: 2^-10 of 2 (1 - cosine), which is about the error itself.
OTHER_PATHS = 1e-3


def worst_error(kind: Agreement, got: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...]) -> float:
    """The largest error over the result arrays; inf where shapes, types or infinities differ."""
    if len(got) != len(want):
        return float("inf")
    return max(_error(kind, np.asarray(g), np.asarray(w)) for g, w in zip(got, want, strict=True))


def _error(kind: Agreement, got: np.ndarray, want: np.ndarray) -> float:
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if kind in (Agreement.EXACT, Agreement.COST):
        return 0.0 if np.array_equal(got, want) else float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    if want.size == 0:
        return 0.0
    g, w = np.where(finite, got, 0).astype(np.float64), np.where(finite, want, 0).astype(np.float64)
    if kind == Agreement.ULP:
        # Relative to the largest value of the vector: differences of near-equal terms lose digits in any order.
        scale = np.maximum(np.abs(w).max(axis=-1, keepdims=True), FLOOR)
        return float((np.abs(g - w) / scale).max())
    return rms(g - w) / max(rms(w), FLOOR)


def worst_cost(got: np.ndarray, want: np.ndarray) -> float:
    """Relative excess of squared errors per vector: how much worse the codes `got` are than the codes `want`."""
    return float(np.max((got - want) / np.maximum(want, FLOOR), initial=0.0))


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))
