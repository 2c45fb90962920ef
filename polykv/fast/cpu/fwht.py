"""Randomised Walsh-Hadamard rotation of groups of values (twin of `polykv.ref.fwht`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.lift_simd import hadamard8
from polykv.fast.cpu.simd import addr, load_f, store_f
from polykv.fast.cpu.simd_math import add_f, sub_f
from polykv.types import F32


@kernel()
def hadamard(y: Any, at: int, g: int) -> None:
    """In place, unnormalised, Sylvester order: y[at : at + g] = H y[at : at + g], g a power of two."""
    h = 1
    if g >= 8:
        p = addr(y) + 4 * at
        for i in range(0, 4 * g, 32):
            store_f(p + i, hadamard8(load_f(p + i)))
        h = 8
        while h < g:
            for i in range(0, 4 * g, 8 * h):
                for j in range(p + i, p + i + 4 * h, 32):
                    a, b = load_f(j), load_f(j + 4 * h)
                    store_f(j, add_f(a, b))
                    store_f(j + 4 * h, sub_f(a, b))
            h *= 2
    while h < g:
        for i in range(at, at + g, 2 * h):
            for j in range(i, i + h):
                u, v = y[j], y[j + h]
                y[j], y[j + h] = u + v, u - v
        h *= 2


@kernel()
def rotate(y: Any, at: int, n: int, g: int, table: Any, first: int, second: int) -> None:
    """In place on groups of g values: y = second * H(y * first) / sqrt(g); the signs lie in `table` at these offsets.

    Forward: first = SIGNS1, second = SIGNS2; inverse: the other way round.
    """
    c = np.float32(1.0) / np.sqrt(np.float32(g))
    for o in range(at, at + n, g):
        for j in range(g):
            y[o + j] *= table[first + j]
        hadamard(y, o, g)
        for j in range(g):
            y[o + j] = y[o + j] * c * table[second + j]


@kernel()
def _groups(x: Any, signs: Any, g: int, inverse: bool, y: Any) -> None:
    y[:] = x
    first, second = (g, 0) if inverse else (0, g)
    rotate(y, 0, y.size, g, signs, first, second)


def fwht(x: F32, signs1: F32, signs2: F32, *, inverse: bool = False, out: F32 | None = None) -> F32:
    """y = signs2 * H(x * signs1) / sqrt(g) on groups of g = len(signs1); the inverse swaps the signs.

    >>> s = np.ones(4, np.float32)
    >>> fwht(np.array([1, 0, 0, 0], np.float32), s, s)
    array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    out = np.empty(x.shape, np.float32) if out is None else out
    signs = np.concatenate([signs1, signs2])
    _groups(np.ascontiguousarray(x).reshape(-1), signs, len(signs1), inverse, out.reshape(-1))
    return out
