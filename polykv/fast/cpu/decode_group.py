"""Codes and scales -> values: one head vector at a time, for everything but attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import (
    BF16_,
    BITS,
    F16_,
    F32_,
    FAMILY,
    GROUP,
    IQ4_NL_,
    LEVELS,
    LLOYD_,
    Q4_1_,
    Q5_1_,
    Q8_0_,
    TRELLIS_,
)
from polykv.fast.cpu.simd import get_f32, get_i32, put_f32, put_i32
from polykv.fast.cpu.simd_math import half_f


@kernel()
def decode_group(codes: int, scale: int, minimum: int, geom: Any, table: int, y: int) -> None:
    """Values float32 [g] at y as they are stored: of rotated types still rotated. Addresses; codes int32 [g]."""
    family, g = geom[FAMILY], geom[GROUP]
    d, m = half_f(np.int32(scale)), half_f(np.int32(minimum))
    for j in range(0, 4 * g, 4):
        code = get_i32(codes + j)
        if family == F32_:
            put_i32(y + j, code)
        elif family == F16_:
            put_f32(y + j, half_f(code))
        elif family == BF16_:
            put_i32(y + j, np.int32(code << 16))
        elif family in (LLOYD_, TRELLIS_, IQ4_NL_):
            put_f32(y + j, get_f32(table + 4 * (LEVELS + code)) * d)
        elif family == Q8_0_:
            put_f32(y + j, np.float32(np.int8(code)) * d)
        elif family in (Q4_1_, Q5_1_):
            put_f32(y + j, np.float32(code) * d + m)
        else:
            put_f32(y + j, np.float32(code - (1 << (geom[BITS] - 1))) * d)
