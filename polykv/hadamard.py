"""Hadamard matrices: H of order g has entries +-1 and H H^T = g. Which orders there are here, and how they are made.

    H(g) = S(2^k) kron P(m)        g = 2^k m, m one of 1, 12, 20, 28, 36

S is Sylvester's matrix, S(1) = [1], S(2n) = [[S, S], [S, -S]]; so index j of a vector is (j // m, j % m). P(1) = [1];
the others are Paley's, made from the quadratic residues of a prime q:

    q = 11, 19    m = q + 1       P = I + [[0, 1], [-1, Q]]                      Q[i, j] = chi(i - j)
    q = 13, 17    m = 2 (q + 1)   P = C kron [[1, 1], [1, -1]] + I kron [[1, -1], [-1, -1]],  C = [[0, 1], [1, Q]]

chi(a) is 0 for a = 0, 1 for squares modulo q, else -1. P is not symmetric for q = 11 and 19: its inverse is P^T / m.
Source: R. E. A. C. Paley, "On orthogonal matrices", J. Math. Phys. 12 (1933).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

# Order of the Paley matrix -> its prime.
PRIMES = {12: 11, 20: 19, 28: 13, 36: 17}
CORES = (1, *PRIMES)
LARGEST_CORE = max(CORES)


def core_order(g: int) -> int:
    """m of H(g), or 0 when there is no matrix of order g here.

    >>> [core_order(g) for g in (64, 80, 96, 112, 576, 104)]
    [1, 20, 12, 28, 36, 0]
    """
    for m in CORES:
        k = g // m
        if k > 0 and g % m == 0 and k & (k - 1) == 0:
            return m
    return 0


@lru_cache
def core(m: int) -> npt.NDArray[np.int8]:
    """P(m), int8 [m, m], read-only."""
    p = np.ones((1, 1), np.int8) if m == 1 else _paley(PRIMES[m])
    p.flags.writeable = False
    return p


def _paley(q: int) -> npt.NDArray[np.int8]:
    residues = {a * a % q for a in range(1, q)}
    chi = np.array([0, *(1 if a in residues else -1 for a in range(1, q))], np.int8)
    i = np.arange(q)
    bordered = np.zeros((q + 1, q + 1), np.int8)
    bordered[0, 1:] = 1
    bordered[1:, 0] = chi[-1]
    bordered[1:, 1:] = chi[(i[:, None] - i) % q]
    one = np.eye(q + 1, dtype=np.int8)
    if q % 4 == 3:
        return bordered + one
    pair, diagonal = np.array([[1, 1], [1, -1]], np.int8), np.array([[1, -1], [-1, -1]], np.int8)
    return np.kron(bordered, pair) + np.kron(one, diagonal)
