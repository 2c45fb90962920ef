"""One head vector <-> integer codes and scales, per codec family. Every layout is written from these codes.

codes uint32 [D']: float32 or float16 bits, int8 as two's complement, 4-bit, or Lloyd-Max index.
scales uint16: float16 bits, one per group. Rules: docs/FORMATS.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.fwht import hadamard, rotate_back
from polykv.fast.cpu.kv_layout import (
    CENTROIDS,
    CORE,
    DIM,
    FAMILIES,
    FAMILY,
    FORWARD,
    GROUP,
    SIGNS1,
    SIGNS2,
    STORED,
    THRESHOLDS,
)
from polykv.fast.cpu.lift_simd import pick8, rank8
from polykv.fast.cpu.simd import addr, load_f, splat_f, store_f, store_i, top_f
from polykv.fast.cpu.simd_math import abs_f, clamp_f, field, half_f, half_i, max_f, mul_f, round_i

# `Family` as integers, which is what kernels compare.
F32_, F16_, Q8_0_, Q4_0_, LLOYD_ = (int(f) for f in FAMILIES)
# The largest finite float16: a scale beyond it would decode to infinity.
F16_MAX = np.float32(65504.0)
# Below the smallest normal float32 a reciprocal may be infinite; such a scale is stored as zero anyway.
TINY = np.float32(1.1754944e-38)
LARGEST = np.float32(1e17)
ZERO, ONE, F127 = np.float32(0.0), np.float32(1.0), np.float32(127.0)
# 1/sqrt(128): thresholds are in units of a unit-norm vector of 128, whatever the size of the group.
UNIT_128 = np.float32(0.08838834764831845)


@kernel()
def _q8_group(x: int, codes: int) -> Any:
    """int8 codes of 32 values at x, as uint32 at `codes`."""
    v0, v1, v2, v3 = load_f(x), load_f(x + 32), load_f(x + 64), load_f(x + 96)
    amax = top_f(max_f(max_f(abs_f(v0), abs_f(v1)), max_f(abs_f(v2), abs_f(v3))))
    d = min(amax / F127, F16_MAX)
    inv = splat_f(ONE / d if d >= TINY else ZERO)
    for k in range(0, 128, 32):
        # Half away from zero, as C's roundf.
        code = round_i(clamp_f(mul_f(load_f(x + k), inv), F127))
        store_i(codes + k, field(code, 0, 255))
    return d


@kernel()
def _q4_group(x: Any, at: int, n: int, codes: Any) -> np.float32:
    amax, m = ZERO, ZERO
    for j in range(at, at + n):
        if abs(x[j]) > amax:
            amax, m = abs(x[j]), x[j]
    d = min(max(m / np.float32(-8.0), -F16_MAX), F16_MAX)
    inv = ONE / d if abs(d) >= TINY else ZERO
    for j in range(at, at + n):
        v = min(max(x[j] * inv, np.float32(-8.0)), np.float32(8.0))
        codes[j] = np.uint32(np.int32(min(v + np.float32(8.5), np.float32(15.0))))
    return d


@kernel()
def _sum_of_squares(y: Any, at: int, g: int) -> np.float32:
    """One after the other: bytes that are stored depend on the order."""
    total = ZERO
    for j in range(at, at + g):
        total += y[j] * y[j]
    return total


@kernel()
def _lloyd_group(y: Any, at: int, g: int, m: int, table: Any, codes: Any) -> np.float32:
    """Codes of y[at : at + g] (overwritten) and the corrected norm; g is a multiple of 8."""
    p, c, t = addr(y) + 4 * at, addr(codes) + 4 * at, addr(table)
    for k in range(0, 4 * g, 32):
        # Such values decode to the largest norm anyway, and their squares would leave the range of float32.
        store_f(p + k, clamp_f(load_f(p + k), LARGEST))
    n = np.sqrt(_sum_of_squares(y, at, g))
    inv = splat_f(ONE / n if n > np.float32(1e-10) else ZERO)
    for k in range(0, 4 * g, 32):
        store_f(p + k, mul_f(mul_f(load_f(p + k), inv), load_f(t + 4 * SIGNS1 + k)))
    hadamard(y, at, g, m, table, FORWARD)
    for k in range(0, 4 * g, 32):
        v = mul_f(mul_f(load_f(p + k), splat_f(UNIT_128)), load_f(t + 4 * SIGNS2 + k))
        code = rank8(v, t + 4 * THRESHOLDS)
        store_i(c + k, code)
        store_f(p + k, pick8(t + 4 * CENTROIDS, code))
    r = np.sqrt(_sum_of_squares(y, at, g))
    return min(n / r if r > np.float32(1e-10) else n, F16_MAX)


@kernel()
def encode_row(x: Any, geom: Any, table: Any, y: Any, codes: Any, scales: Any) -> None:
    """Codes and scales of the head vector x [D], contiguous; y float32 [D'] is scratch."""
    family, dim, stored, group = geom[FAMILY], geom[DIM], geom[STORED], geom[GROUP]
    to, values = addr(y), addr(x)
    for k in range(0, 4 * dim, 32):
        store_f(to + k, load_f(values + k))
    for k in range(4 * dim, 4 * stored, 32):
        store_f(to + k, splat_f(ZERO))
    if family == F32_:
        codes[:] = y.view(np.uint32)
    elif family == F16_:
        for j in range(stored):
            codes[j] = np.uint32(half_i(min(max(y[j], -F16_MAX), F16_MAX)))
    else:
        for i in range(stored // group):
            if family == Q8_0_:
                d = _q8_group(addr(y) + 4 * group * i, addr(codes) + 4 * group * i)
            elif family == Q4_0_:
                d = _q4_group(y, i * group, group, codes)
            else:
                d = _lloyd_group(y, i * group, group, geom[CORE], table, codes)
            scales[i] = np.uint16(half_i(d))


@kernel()
def decode_row(codes: Any, scales: Any, geom: Any, table: Any, y: Any) -> None:
    """True-space values y [D'] of codes and scales; the first D are the head vector."""
    family, stored, group = geom[FAMILY], geom[STORED], geom[GROUP]
    if family == F32_:
        y[:] = codes.view(np.float32)
    elif family == F16_:
        for j in range(stored):
            y[j] = half_f(np.int32(codes[j]))
    else:
        for i in range(stored // group):
            d = half_f(np.int32(scales[i]))
            for j in range(i * group, (i + 1) * group):
                if family == Q8_0_:
                    y[j] = np.float32(np.int8(codes[j])) * d
                elif family == Q4_0_:
                    y[j] = np.float32(np.int32(codes[j]) - 8) * d
                else:
                    y[j] = table[CENTROIDS + codes[j]] * d
        if family == LLOYD_:
            rotate_back(y, geom, table)
