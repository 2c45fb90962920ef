"""Codes of rotated types, 8 groups at a time (twin of `polykv.ref.rotation` and `polykv.ref.lloyd_max`).

Every function works on a tile (float32 [g, 8], see `encode_simd`) in place. Rules: docs/FORMATS.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_simd import (
    pick_f,
    quotient_f,
    rank3,
    rank7,
    rank15,
    rank255,
    root_f,
    stages2,
    stages4,
    stages8,
)
from polykv.fast.cpu.kv_layout import ALPHA, BITS, CORE, FORWARD, GROUP, LEVELS, SIGNS1, SIGNS2, THRESHOLDS
from polykv.fast.cpu.lift_simd import pick8
from polykv.fast.cpu.simd import get_f32, load_f, splat_f, store_f, store_i
from polykv.fast.cpu.simd_math import add_f, clamp_f, fma, mul_f

F16_MAX = np.float32(65504.0)
# Such values decode to the largest norm anyway, and their squares would leave the range of float32.
LARGEST = np.float32(1e17)
# Groups shorter than this count as zero.
SMALLEST = np.float32(1e-10)
ZERO, ONE = np.float32(0.0), np.float32(1.0)
# 1/sqrt(128): thresholds are in units of a unit-norm vector of 128, whatever the size of the group.
UNIT_128 = np.float32(0.08838834764831845)


@kernel()
def length_in_order(x: int, g: int) -> Any:
    """Lengths of the groups, squares added one after the other: stored bytes depend on the order."""
    total = splat_f(ZERO)
    for p in range(x, x + 32 * g, 32):
        total = add_f(total, mul_f(load_f(p), load_f(p)))
    return root_f(total)


@kernel()
def length_as_tree(x: int, g: int, spare: int) -> Any:
    """The same, squares added as a tree: first value j and j + n/2, then j and j + n/4 (n a power of two).

    spare: memory for a tile, which may be x itself.
    """
    for i in range(0, 32 * g, 32):
        store_f(spare + i, mul_f(load_f(x + i), load_f(x + i)))
    have, n = g, 1
    while n < g:
        n *= 2
    while n > 1:
        n //= 2
        for p in range(spare, spare + 32 * (have - n), 32):
            store_f(p, add_f(load_f(p), load_f(p + 32 * n)))
        have = min(have, n)
    return root_f(load_f(spare))


@kernel()
def clamp_tile(x: int, g: int) -> None:
    """Values within the range whose squares can be added."""
    for p in range(x, x + 32 * g, 32):
        store_f(p, clamp_f(load_f(p), LARGEST))


@kernel()
def turn_tile(x: int, geom: Any, table: int, n: Any, spare: int) -> None:
    """y = rotate(x / n), in the units of the tables. spare: memory for 36 vectors."""
    g, inverse = geom[GROUP], quotient_f(splat_f(ONE), n, SMALLEST, splat_f(ZERO))
    sign = table + 4 * SIGNS1
    for p in range(x, x + 32 * g, 32):
        store_f(p, mul_f(mul_f(load_f(p), inverse), splat_f(get_f32(sign))))
        sign += 4
    _hadamard(x, g, geom[CORE], table + 4 * FORWARD, spare)
    sign = table + 4 * SIGNS2
    for p in range(x, x + 32 * g, 32):
        store_f(p, mul_f(mul_f(load_f(p), splat_f(UNIT_128)), splat_f(get_f32(sign))))
        sign += 4


@kernel()
def _hadamard(x: int, g: int, m: int, matrix: int, spare: int) -> None:
    """H x, unnormalised; the transpose of Paley's matrix of order m is at `matrix`."""
    if m > 1:
        for first in range(x, x + 32 * g, 32 * m):
            _mix(first, m, matrix, spare)
    h = m
    while h < g:
        count = min(8, g // h)
        for first in range(x, x + 32 * g, 32 * h * count):
            for p in range(first, first + 32 * h, 32):
                if count == 8:
                    stages8(p, 32 * h)
                elif count == 4:
                    stages4(p, 32 * h)
                else:
                    stages2(p, 32 * h)
        h *= count


@kernel()
def _mix(x: int, m: int, matrix: int, spare: int) -> None:
    """One run of m values times an m x m matrix, whose transpose is at `matrix`; m is a multiple of 4."""
    for i in range(0, m, 4):
        a, b, c, d = splat_f(ZERO), splat_f(ZERO), splat_f(ZERO), splat_f(ZERO)
        p = matrix + 4 * i
        for j in range(m):
            v = load_f(x + 32 * j)
            a, b = fma(splat_f(get_f32(p)), v, a), fma(splat_f(get_f32(p + 4)), v, b)
            c, d = fma(splat_f(get_f32(p + 8)), v, c), fma(splat_f(get_f32(p + 12)), v, d)
            p += 4 * m
        to = spare + 32 * i
        store_f(to, a)
        store_f(to + 32, b)
        store_f(to + 64, c)
        store_f(to + 96, d)
    for i in range(0, 32 * m, 32):
        store_f(x + i, load_f(spare + i))


@kernel()
def lloyd_codes(x: int, geom: Any, table: int) -> Any:
    """Codes of rotated groups, in place; returns the lengths of what they stand for."""
    bits, levels, thresholds, total = geom[BITS], table + 4 * LEVELS, table + 4 * THRESHOLDS, splat_f(ZERO)
    for p in range(x, x + 32 * geom[GROUP], 32):
        y = load_f(p)
        if bits == 3:
            code = rank7(y, thresholds)
            level = pick8(levels, code)
        elif bits == 2:
            code = rank3(y, thresholds)
            level = pick8(levels, code)
        elif bits == 4:
            code = rank15(y, thresholds)
            level = pick_f(levels, code)
        else:
            code = rank255(y, thresholds)
            level = pick_f(levels, code)
        store_i(p, code)
        total = add_f(total, mul_f(level, level))
    return root_f(total)


@kernel()
def stored_norm(n: Any, r: Any, table: int) -> Any:
    """Norms to store of groups of length n whose codes stand for vectors of length r."""
    return clamp_f(mul_f(quotient_f(n, r, SMALLEST, n), splat_f(get_f32(table + 4 * ALPHA))), F16_MAX)


@kernel()
def lloyd_tile(x: int, geom: Any, table: int, spare: int) -> Any:
    """Lloyd-Max codes; returns the norms to store. spare: memory for a tile or 36 vectors."""
    clamp_tile(x, geom[GROUP])
    n = length_in_order(x, geom[GROUP])
    turn_tile(x, geom, table, n, spare)
    return stored_norm(n, lloyd_codes(x, geom, table), table)
