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
from polykv.fast.cpu.simd_math import half_f, half_i

# `Family` as integers, which is what kernels compare.
F32_, F16_, Q8_0_, Q4_0_, LLOYD_ = (int(f) for f in FAMILIES)
# The largest finite float16: a scale beyond it would decode to infinity.
F16_MAX = np.float32(65504.0)
# Below the smallest normal float32 a reciprocal may be infinite; such a scale is stored as zero anyway.
TINY = np.float32(1.1754944e-38)
LARGEST = np.float32(1e17)
ZERO, ONE = np.float32(0.0), np.float32(1.0)
# 1/sqrt(128): thresholds are in units of a unit-norm vector of 128, whatever the size of the group.
UNIT_128 = np.float32(0.08838834764831845)


@kernel()
def _q8_group(x: Any, at: int, n: int, codes: Any) -> np.float32:
    amax = ZERO
    for j in range(at, at + n):
        amax = max(amax, abs(x[j]))
    d = min(amax / np.float32(127.0), F16_MAX)
    inv = ONE / d if d >= TINY else ZERO
    for j in range(at, at + n):
        v = min(max(x[j] * inv, np.float32(-127.0)), np.float32(127.0))
        # Half away from zero, as C's roundf: trunc(v +- 0.5) would round 0.49999997 up.
        t = np.trunc(v)
        f = v - t
        if f >= np.float32(0.5):
            t += ONE
        elif f <= np.float32(-0.5):
            t -= ONE
        codes[j] = np.uint32(np.int32(t)) & np.uint32(255)
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
def _lloyd_group(y: Any, at: int, g: int, m: int, table: Any, codes: Any) -> np.float32:
    """Codes of y[at : at + g] (overwritten) and the corrected norm."""
    sum2 = ZERO
    for j in range(at, at + g):
        # Such values decode to the largest norm anyway, and their squares would leave the range of float32.
        y[j] = min(max(y[j], -LARGEST), LARGEST)
        sum2 += y[j] * y[j]
    n = np.sqrt(sum2)
    inv = ONE / n if n > np.float32(1e-10) else ZERO
    for j in range(g):
        y[at + j] = y[at + j] * inv * table[SIGNS1 + j]
    hadamard(y, at, g, m, table, FORWARD)
    r2 = ZERO
    for j in range(g):
        v = y[at + j] * UNIT_128 * table[SIGNS2 + j]
        idx = 0
        for k in range(7):
            idx += 0 if v < table[THRESHOLDS + k] else 1
        codes[at + j] = np.uint32(idx)
        c = table[CENTROIDS + idx]
        r2 += c * c
    r = np.sqrt(r2)
    return min(n / r if r > np.float32(1e-10) else n, F16_MAX)


@kernel()
def encode_row(x: Any, geom: Any, table: Any, y: Any, codes: Any, scales: Any) -> None:
    """Codes and scales of the head vector x [D]; y float32 [D'] is scratch."""
    family, dim, stored, group = geom[FAMILY], geom[DIM], geom[STORED], geom[GROUP]
    y[:dim] = x
    y[dim:stored] = ZERO
    if family == F32_:
        codes[:] = y.view(np.uint32)
    elif family == F16_:
        for j in range(stored):
            codes[j] = np.uint32(half_i(min(max(y[j], -F16_MAX), F16_MAX)))
    else:
        for i in range(stored // group):
            if family == Q8_0_:
                d = _q8_group(y, i * group, group, codes)
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
