"""Integer products of a few rows: what is unpacked stays in registers.

For many rows of activations the codes of a tile are unpacked once and read again and again (`linear_q8`). For one to
three rows it costs more to store and read them than it saves, and unpacking can fill the time in which a lone sum waits
for itself. Same sums in the same order: the results are equal bit for bit.

    few(w, pitch, blocks, x, x_pitch, n, y, y_pitch, ahead, step)

y float32 [n, 8] of n rows x and 8 rows of W, `pitch` bytes apart; with every block, `step` bytes from `ahead` on are
asked for (`linear_ahead`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_ahead import ask
from polykv.fast.cpu.linear_unpack import iq4_nl_tile, q4_0_tile, q4_1_tile, q5_0_tile, q5_1_tile, q8_0_tile
from polykv.fast.cpu.q8 import BLOCK
from polykv.fast.cpu.simd import get_f32, get_i32, load_f, splat_f, store_f
from polykv.fast.cpu.simd_math import fma, mul_f, to_f
from polykv.fast.cpu.simd_weights import BIAS, dot, dot_wide

NOTHING = np.float32(0)


@kernel(inlined=True)
def _add(tile: Any, wide: bool, minimum: bool, zero: int, x: int, acc: Any) -> Any:
    """acc plus the products of one block with the row of blocks at x."""
    low, high, a, b = tile
    start = -zero * get_i32(x + 36)
    total = dot_wide(low, high, x, start) if wide else dot(low, high, x, start)
    acc = fma(to_f(total), mul_f(a, splat_f(get_f32(x + 32))), acc)
    return fma(b, splat_f(get_f32(x + 40)), acc) if minimum else acc


@kernel(inlined=True)
def _few(
    tile: Any,
    size: int,
    wide: bool,
    minimum: bool,
    zero: int,
    w: int,
    pitch: int,
    blocks: int,
    x: int,
    x_pitch: int,
    n: int,
    y: int,
    y_pitch: int,
    ahead: int,
    step: int,
) -> None:
    """See above; `tile` makes codes and scales of a block, which is `size` bytes long."""
    nothing = splat_f(NOTHING)
    if n == 1:
        acc = nothing
        for _ in range(blocks):
            ask(ahead, step)
            acc = _add(tile(w, pitch), wide, minimum, zero, x, acc)
            w, x, ahead = w + size, x + BLOCK, ahead + step
        store_f(y, acc)
        return
    for r in range(n):
        store_f(y + r * y_pitch, nothing)
    for _ in range(blocks):
        ask(ahead, step)
        unpacked, row, to = tile(w, pitch), x, y
        for _ in range(n):
            store_f(to, _add(unpacked, wide, minimum, zero, row, load_f(to)))
            row, to = row + x_pitch, to + y_pitch
        w, x, ahead = w + size, x + BLOCK, ahead + step


@kernel()
def few_q4_0(
    w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, y: int, y_pitch: int, ahead: int, step: int
) -> None:
    """Blocks of 18 bytes."""
    _few(q4_0_tile, 18, False, False, 8, w, pitch, blocks, x, x_pitch, n, y, y_pitch, ahead, step)


@kernel()
def few_q4_1(
    w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, y: int, y_pitch: int, ahead: int, step: int
) -> None:
    """Blocks of 20 bytes."""
    _few(q4_1_tile, 20, False, True, 0, w, pitch, blocks, x, x_pitch, n, y, y_pitch, ahead, step)


@kernel()
def few_q5_0(
    w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, y: int, y_pitch: int, ahead: int, step: int
) -> None:
    """Blocks of 22 bytes."""
    _few(q5_0_tile, 22, False, False, 16, w, pitch, blocks, x, x_pitch, n, y, y_pitch, ahead, step)


@kernel()
def few_q5_1(
    w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, y: int, y_pitch: int, ahead: int, step: int
) -> None:
    """Blocks of 24 bytes."""
    _few(q5_1_tile, 24, False, True, 0, w, pitch, blocks, x, x_pitch, n, y, y_pitch, ahead, step)


@kernel()
def few_q8_0(
    w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, y: int, y_pitch: int, ahead: int, step: int
) -> None:
    """Blocks of 34 bytes."""
    _few(q8_0_tile, 34, True, False, BIAS, w, pitch, blocks, x, x_pitch, n, y, y_pitch, ahead, step)


@kernel()
def few_iq4_nl(
    w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, y: int, y_pitch: int, ahead: int, step: int
) -> None:
    """Blocks of 18 bytes."""
    _few(iq4_nl_tile, 18, True, False, BIAS, w, pitch, blocks, x, x_pitch, n, y, y_pitch, ahead, step)
