"""Unpack 8 rows of weights that are floats: any number of columns, one float32 vector per column, 64 bytes apart."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_float import COLUMN_BYTES
from polykv.fast.cpu.simd import splat_i, store_f
from polykv.fast.cpu.simd_math import and_i, bits_f, high_half, low_half, shl
from polykv.fast.cpu.simd_weights import gather2, gather4, gather16


@kernel()
def plain_f32(src: int, pitch: int, columns: int, panel: int) -> None:
    """float32."""
    while columns >= 4:
        q = gather16(src, pitch)
        for i in range(4):
            store_f(panel + COLUMN_BYTES * i, bits_f(q[i]))
        src, panel, columns = src + 16, panel + 4 * COLUMN_BYTES, columns - 4
    for _ in range(columns):
        store_f(panel, bits_f(gather4(src, pitch)))
        src, panel = src + 4, panel + COLUMN_BYTES


@kernel()
def plain_f16(src: int, pitch: int, columns: int, panel: int) -> None:
    """IEEE float16."""
    while columns >= 8:
        q = gather16(src, pitch)
        for i in range(4):
            store_f(panel + 2 * COLUMN_BYTES * i, low_half(q[i]))
            store_f(panel + 2 * COLUMN_BYTES * i + COLUMN_BYTES, high_half(q[i]))
        src, panel, columns = src + 16, panel + 8 * COLUMN_BYTES, columns - 8
    for _ in range(columns):
        store_f(panel, low_half(gather2(src, pitch)))
        src, panel = src + 2, panel + COLUMN_BYTES


@kernel()
def plain_bf16(src: int, pitch: int, columns: int, panel: int) -> None:
    """The upper half of a float32."""
    while columns >= 8:
        q = gather16(src, pitch)
        for i in range(4):
            store_f(panel + 2 * COLUMN_BYTES * i, _upper(shl(q[i], 16)))
            store_f(panel + 2 * COLUMN_BYTES * i + COLUMN_BYTES, _upper(q[i]))
        src, panel, columns = src + 16, panel + 8 * COLUMN_BYTES, columns - 8
    for _ in range(columns):
        store_f(panel, _upper(shl(gather2(src, pitch), 16)))
        src, panel = src + 2, panel + COLUMN_BYTES


@kernel()
def _upper(v: Any) -> Any:
    return bits_f(and_i(v, splat_i(-65536)))
