"""Products with 8-bit codes that lie in two planes of four bits (`Resident.Q8_0_PLANES`).

Codes and scales are those of Q8_0. For every 8 rows, a tile, and every block of 32 columns

    the upper plane has 144 bytes: fp16 scales of the 8 rows, their upper nibbles (`simd_planes`)
    the lower plane has 128 bytes: their lower nibbles

tile after tile, and the lower plane follows the upper one: a screen (`screen`) reads the upper one alone, as one
stream. (Planes of a tile one behind the other were read little faster than all of it: memory answers streams.) A tile
is addressed by a block of its upper part and `apart`, the bytes from there to the lower nibbles of the same block. The
number of rows is a multiple of 8. Sums are those of Q8_0, in the same order: they are equal bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_ahead import AHEAD, ask
from polykv.fast.cpu.linear_types import LOWER_ROW, PANEL_BLOCK, UPPER_ROW
from polykv.fast.cpu.linear_unpack import put
from polykv.fast.cpu.q8 import BLOCK
from polykv.fast.cpu.simd import get_f32, get_i32, load_f, load_u16x8, splat_f, store_f
from polykv.fast.cpu.simd_math import fma, low_half, mul_f, to_f
from polykv.fast.cpu.simd_planes import dot_upper, load_planes, load_upper
from polykv.fast.cpu.simd_weights import BIAS, dot_8

# Bytes of a block's part in the upper and in the lower plane, and where nibbles begin in the upper one.
UPPER, LOWER, NIBBLES = 8 * UPPER_ROW, 8 * LOWER_ROW, 16
# Bytes of a row of sums.
ROW = 32
NOTHING = np.float32(0)
# The lower nibble that a screen assumes everywhere, and what upper nibbles count from.
MIDDLE, OFFSET = 8, 128


@kernel(inlined=True)
def _tile(upper: int, lower: int) -> Any:
    codes, d = load_planes(upper + NIBBLES, lower), low_half(load_u16x8(upper))
    return codes[:4], codes[4:], d, d


@kernel()
def q8_0_planes(src: int, apart: int, blocks: int, panel: int) -> None:
    """Unpack (see `linear_unpack`)."""
    lower = src + apart
    for i in range(blocks):
        put(panel + PANEL_BLOCK * i, _tile(src + UPPER * i, lower + LOWER * i))


@kernel(inlined=True)
def _add(tile: Any, x: int, acc: Any) -> Any:
    low, high, d, _ = tile
    total = to_f(dot_8(low, high, x, -BIAS * get_i32(x + 36)))
    return fma(total, mul_f(d, splat_f(get_f32(x + 32))), acc)


@kernel()
def few_planes(w: int, apart: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Sums of few rows (see `linear_few`). What is asked for by address is of the upper plane; of the lower one, as
    much ahead of what is read."""
    lower, more = w + apart, LOWER if step != 0 else 0
    for r in range(n):
        store_f(sums + ROW * r, splat_f(NOTHING))
    if n == 1:
        acc = splat_f(NOTHING)
        for _ in range(blocks):
            ask(ahead, step)
            ask(lower + AHEAD, more)
            acc = _add(_tile(w, lower), x, acc)
            w, lower, x, ahead = w + UPPER, lower + LOWER, x + BLOCK, ahead + step
        store_f(sums, acc)
        return
    for _ in range(blocks):
        ask(ahead, step)
        ask(lower + AHEAD, more)
        tile, row, to = _tile(w, lower), x, sums
        for _ in range(n):
            store_f(to, _add(tile, row, load_f(to)))
            row, to = row + x_pitch, to + ROW
        w, lower, x, ahead = w + UPPER, lower + LOWER, x + BLOCK, ahead + step


@kernel(inlined=True)
def _estimate(codes: Any, d: Any, x: int, acc: Any) -> Any:
    total = to_f(dot_upper(codes, x, (MIDDLE - OFFSET) * get_i32(x + 36)))
    return fma(total, mul_f(d, splat_f(get_f32(x + 32))), acc)


@kernel()
def screen_tile(w: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Sums as `few_planes` would give them if all lower nibbles were MIDDLE; only the upper part is read."""
    if n == 1:
        acc = splat_f(NOTHING)
        for _ in range(blocks):
            ask(ahead, step)
            acc = _estimate(load_upper(w + NIBBLES), low_half(load_u16x8(w)), x, acc)
            w, x, ahead = w + UPPER, x + BLOCK, ahead + step
        store_f(sums, acc)
        return
    for r in range(n):
        store_f(sums + ROW * r, splat_f(NOTHING))
    for _ in range(blocks):
        ask(ahead, step)
        codes, d, row, to = load_upper(w + NIBBLES), low_half(load_u16x8(w)), x, sums
        for _ in range(n):
            store_f(to, _estimate(codes, d, row, load_f(to)))
            row, to = row + x_pitch, to + ROW
        w, x, ahead = w + UPPER, x + BLOCK, ahead + step
