"""fwht: the randomised Hadamard rotation.

    y = s2 * H (x * s1) / sqrt(g)        inverse: x = s1 * H^T (y * s2) / sqrt(g)

H is the Hadamard matrix of order g = 2^k m, Sylvester's of order 2^k kron Paley's of order m (polykv/hadamard.py). For
powers of two m is 1 and H is applied in log2(g) stages of (a, b) -> (a + b, a - b); otherwise runs of m values are
first multiplied by Paley's matrix. The map is orthogonal, so dot products and lengths survive, while single outliers
are spread over all g values: that is what makes 3-bit codes possible. Source: docs/FORMATS.md; Ailon and Chazelle, "The
fast Johnson-Lindenstrauss transform".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.hadamard import core, core_order
from polykv.ref.weights import give
from polykv.types import F32

Floats = npt.NDArray[np.floating[Any]]


def fwht(x: F32, signs1: F32, signs2: F32, *, inverse: bool = False, out: F32 | None = None) -> F32:
    """Rotate consecutive groups of g = len(signs1) values of the last axis; g as in `polykv.hadamard`.

    >>> x, one = np.array([1, 2, 3, 4], np.float32), np.ones(4, np.float32)
    >>> fwht(x, one, one)
    array([ 5., -1., -2.,  0.], dtype=float32)
    """
    return give(rotate(x, signs1, signs2, inverse=inverse), out)


def rotate(x: Floats, signs1: F32, signs2: F32, *, inverse: bool = False, length: int = 0) -> Any:
    """The same for any float type, computed in that type; length: divide by its root instead of that of g."""
    first, last = (signs2, signs1) if inverse else (signs1, signs2)
    g = len(signs1)
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // g, g)
    scale = x.dtype.type(1 / np.sqrt(length or g))
    return (hadamard(groups * first.astype(x.dtype), inverse) * scale * last.astype(x.dtype)).reshape(x.shape)


def hadamard(x: Floats, transposed: bool = False) -> Floats:
    """H x (or H^T x) along the last axis, unnormalised."""
    shape, h = x.shape, core_order(x.shape[-1])
    if h > 1:
        p = core(h).astype(x.dtype)
        x = x.reshape(*shape[:-1], shape[-1] // h, h) @ (p if transposed else p.T)
    while h < shape[-1]:
        pairs = x.reshape(*shape[:-1], shape[-1] // (2 * h), 2, h)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([a + b, a - b], axis=-2)
        h *= 2
    return x.reshape(shape)
