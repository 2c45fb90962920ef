"""Randomised Hadamard rotation of groups of values (twin of `polykv.ref.fwht`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import BACKWARD, CORE, FORWARD, SIGNS1, SIGNS2, STORED, TURN
from polykv.fast.cpu.lift_simd import hadamard8
from polykv.fast.cpu.simd import addr, get_f32, load_f, splat_f, store_f
from polykv.fast.cpu.simd_math import add_f, fma, sub_f
from polykv.hadamard import core, core_order
from polykv.results import result
from polykv.types import F32


@kernel()
def hadamard(y: Any, at: int, g: int, m: int, table: Any, matrix: int) -> None:
    """In place, unnormalised: y[at : at + g] = H y[at : at + g], g = 2^k m.

    m > 1: the rows of Paley's matrix are at `matrix` in the table, transposed for H, as it is for H^T.
    """
    if m > 1:
        _runs(y, at, g, m, table, matrix)
        _butterflies(y, at, g, m)
    elif g >= 8:
        for p in range(addr(y) + 4 * at, addr(y) + 4 * (at + g), 32):
            store_f(p, hadamard8(load_f(p)))
        _butterflies(y, at, g, 8)
    else:
        _butterflies(y, at, g, 1)


@kernel()
def _runs(y: Any, at: int, g: int, m: int, table: Any, matrix: int) -> None:
    """Multiply runs of m values by an m x m matrix, whose transpose is at `matrix`.

    8 results at a time, the last 8 of a run together with some that are known already.
    """
    z = np.empty(m, np.float32)
    rows, out = addr(table) + 4 * matrix, addr(z)
    for first in range(at, at + g, m):
        run = addr(y) + 4 * first
        for i in range(0, 4 * m, 32):
            k = min(i, 4 * m - 32)
            total = splat_f(np.float32(0))
            for j in range(m):
                total = fma(load_f(rows + 4 * m * j + k), splat_f(get_f32(run + 4 * j)), total)
            store_f(out + k, total)
        # By name: an array that is only known by its address would be freed before this.
        for k in range(m):
            y[first + k] = z[k]


@kernel()
def _butterflies(y: Any, at: int, g: int, h: int) -> None:
    """Sylvester's stages (a, b) -> (a + b, a - b) at distances h, 2 h, ... below g."""
    p = addr(y) + 4 * at
    while h < g:
        whole = h // 8 * 8
        for i in range(0, 4 * g, 8 * h):
            for j in range(p + i, p + i + 4 * whole, 32):
                a, b = load_f(j), load_f(j + 4 * h)
                store_f(j, add_f(a, b))
                store_f(j + 4 * h, sub_f(a, b))
        for i in range(at, at + g, 2 * h):
            for j in range(i + whole, i + h):
                u, v = y[j], y[j + h]
                y[j], y[j + h] = u + v, u - v
        h *= 2


@kernel()
def _turn(y: Any, at: int, g: int, m: int, table: Any, first: int, second: int, matrix: int) -> None:
    """One group, in place: y = second * H (y * first) / sqrt(g); the signs lie in `table` at these offsets."""
    c = np.float32(1.0) / np.sqrt(np.float32(g))
    for j in range(g):
        y[at + j] *= table[first + j]
    hadamard(y, at, g, m, table, matrix)
    for j in range(g):
        y[at + j] = y[at + j] * c * table[second + j]


@kernel()
def rotate(y: Any, geom: Any, table: Any) -> None:
    """All turns of a vector y [D'], in place, to the space in which codes are stored."""
    for at in range(0, geom[STORED] - geom[TURN] + 1, geom[TURN]):
        _turn(y, at, geom[TURN], geom[CORE], table, SIGNS1, SIGNS2, FORWARD)


@kernel()
def rotate_back(y: Any, geom: Any, table: Any) -> None:
    """Inverse of `rotate`."""
    for at in range(0, geom[STORED] - geom[TURN] + 1, geom[TURN]):
        _turn(y, at, geom[TURN], geom[CORE], table, SIGNS2, SIGNS1, BACKWARD)


@kernel()
def _groups(x: Any, table: Any, g: int, m: int, inverse: bool, y: Any) -> None:
    y[:] = x
    first, second = (g, 0) if inverse else (0, g)
    for at in range(0, y.size, g):
        _turn(y, at, g, m, table, first, second, 2 * g)


def fwht(x: F32, signs1: F32, signs2: F32, *, inverse: bool = False, out: F32 | None = None) -> F32:
    """y = signs2 * H (x * signs1) / sqrt(g) on groups of g = len(signs1); the inverse swaps the signs and takes H^T.

    >>> s = np.ones(4, np.float32)
    >>> fwht(np.array([1, 0, 0, 0], np.float32), s, s)
    array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    out = result(out, x.shape)
    g = len(signs1)
    m = core_order(g)
    p = core(m) if inverse else core(m).T
    table = np.concatenate([signs1, signs2, p.reshape(-1)], dtype=np.float32, casting="unsafe")
    _groups(np.ascontiguousarray(x).reshape(-1), table, g, m, inverse, out.reshape(-1))
    return out
