"""Makes the tables of Lloyd-Max types: levels c and thresholds t with the least mean squared error for a density.

    t_i = (c_i + c_i+1) / 2        c_i = E[x | t_i-1 <= x < t_i]

Alternating the two (Lloyd) converges slowly for many levels; after a few rounds Newton's method on c - E[...] finishes,
whose matrix is tridiagonal because a level meets its two neighbours only. The codes that the project uses are in
data/tables; this is how they, or tables for another density, come about. Sources: Lloyd, "Least squares quantization in
PCM" (1982); Max, "Quantizing for minimum distortion" (1960).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Density = Callable[[F64], F64]

# Nodes of Gauss's rule per cell: exact to rounding for smooth densities.
NODES = 48
ROUNDS, STEPS = 200, 50


def normal(x: F64) -> F64:
    """Density of N(0, 1)."""
    return np.asarray(np.exp(-x * x / 2) / np.sqrt(2 * np.pi), np.float64)


def lloyd_max(levels: int, density: Density = normal, reach: float = 12.0) -> tuple[F64, F64]:
    """Ascending levels [levels] and thresholds [levels - 1] for a density that is smooth and positive on (-reach,
    reach) and negligible outside; it need not be normalised.

    >>> [round(float(c), 4) for c in lloyd_max(2)[0]]
    [-0.7979, 0.7979]
    """
    c = _companded(levels, density, reach)
    for _ in range(ROUNDS):
        c = _means(_edges(c, reach), density)[1]
    for _ in range(STEPS):
        step = _newton(c, density, reach)
        if not (np.diff(c - step) > 0).all():
            # Too far out for a step: one more round of Lloyd's.
            c = _means(_edges(c, reach), density)[1]
            continue
        c = c - step
        if np.abs(step).max() < 1e-13 * reach:
            break
    return c, (c[1:] + c[:-1]) / 2


def equal_probability(levels: int, density: Density = normal, reach: float = 12.0) -> tuple[F64, F64]:
    """Means of bins of equal probability, and the midpoints between them: one published table is made so, which has
    about twice the squared error of the best one."""
    edges = _quantiles(np.arange(levels + 1) / levels, density, reach)
    edges[0], edges[-1] = -reach, reach
    c = _means(edges, density)[1]
    return c, (c[1:] + c[:-1]) / 2


def distortion(c: F64, density: Density = normal, reach: float = 12.0) -> float:
    """Mean squared error of levels c with thresholds between them."""
    x, w = _nodes(_edges(c, reach), density)
    return float((w * (x - c[:, None]) ** 2).sum() / w.sum())


def _edges(c: F64, reach: float) -> F64:
    """Borders of the cells [levels + 1]."""
    return np.concatenate([[-reach], (c[1:] + c[:-1]) / 2, [reach]])


def _nodes(edges: F64, density: Density) -> tuple[F64, F64]:
    """Nodes and weights times density, [cells, NODES]."""
    u, w = np.polynomial.legendre.leggauss(NODES)
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (u + 1)
    return x, half * w * density(x)


def _means(edges: F64, density: Density) -> tuple[F64, F64]:
    """Mass and mean of every cell."""
    x, w = _nodes(edges, density)
    mass = w.sum(axis=1)
    return mass, np.asarray((w * x).sum(axis=1) / mass, np.float64)


def _newton(c: F64, density: Density, reach: float) -> F64:
    """The step of Newton's method from c."""
    edges = _edges(c, reach)
    mass, mean = _means(edges, density)
    # d mean / d edge; an edge moves half as far as each of its two levels.
    lower = density(edges[1:-1]) * (mean[1:] - edges[1:-1]) / mass[1:] / 2
    upper = density(edges[1:-1]) * (edges[1:-1] - mean[:-1]) / mass[:-1] / 2
    matrix = np.eye(len(c)) - np.diag(upper, 1) - np.diag(lower, -1)
    matrix -= np.diag(np.append(upper, 0)) + np.diag(np.append(0, lower))
    return np.asarray(np.linalg.solve(matrix, c - mean), np.float64)


def _companded(levels: int, density: Density, reach: float) -> F64:
    """The best levels for very many of them have a density proportional to density^(1/3): a good start."""
    return _quantiles((np.arange(levels) + 0.5) / levels, lambda x: np.cbrt(density(x)), reach)


def _quantiles(p: F64, density: Density, reach: float) -> F64:
    """Points below which a share p of the density lies."""
    edges = np.linspace(-reach, reach, 4097)
    below = np.concatenate([[0], np.cumsum(_means(edges, lambda x: density(x) + 1e-300)[0])])
    return np.asarray(np.interp(p * below[-1], below, edges), np.float64)
