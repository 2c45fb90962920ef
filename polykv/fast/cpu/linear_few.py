"""Integer products of a few rows: what is unpacked stays in registers.

For many rows of activations the codes of a tile are unpacked once and read again and again (`linear_q8`), and sums stay
in registers. For up to sixteen rows it costs less to unpack a block into registers and to add to sums in memory, and
unpacking can fill the time in which a lone sum waits for itself. Same sums in the same order: the results are equal bit
for bit.

    few(w, pitch, blocks, x, x_pitch, n, sums, ahead, step)

sums float32 [n, 8] of n rows x and 8 rows of W, `pitch` bytes apart, in memory of the worker's own, for they grow
there; with every block, `step` bytes from `ahead` on are asked for (`linear_ahead`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_ahead import ask
from polykv.fast.cpu.linear_unpack import iq4_nl_tile, q4_0_tile, q4_1_tile, q5_0_tile, q5_1_tile, q8_0_tile
from polykv.fast.cpu.q8 import BLOCK
from polykv.fast.cpu.simd import get_f32, get_i32, load_f, splat_f, store_f
from polykv.fast.cpu.simd_math import fma, high_half, low_half, mul_f, to_f
from polykv.fast.cpu.simd_weights import BIAS, dot_4, dot_5, dot_8, dot_nibbles, field4, gather16, upper4

NIBBLES = 0x0F0F0F0F
# Bytes of a row of sums.
ROW = 32
NOTHING = np.float32(0)


@kernel(inlined=True)
def _add(tile: Any, dot: Any, minimum: bool, zero: int, x: int, acc: Any) -> Any:
    """acc plus the products of one block with the row of blocks at x."""
    low, high, a, b = tile
    total = to_f(dot(low, high, x, 0 if minimum else -zero * get_i32(x + 36)))
    acc = fma(total, mul_f(a, splat_f(get_f32(x + 32))), acc)
    return fma(b, splat_f(get_f32(x + 40)), acc) if minimum else acc


@kernel()
def _clear(n: int, sums: int) -> None:
    for r in range(n):
        store_f(sums + ROW * r, splat_f(NOTHING))


@kernel(inlined=True)
def _few(
    tile: Any,
    dot: Any,
    size: int,
    minimum: bool,
    zero: int,
    w: int,
    pitch: int,
    blocks: int,
    x: int,
    x_pitch: int,
    n: int,
    sums: int,
    ahead: int,
    step: int,
) -> None:
    """Add to the sums; `tile` makes codes and scales of a block, which is `size` bytes long, `dot` multiplies them."""
    if n == 1:
        acc = load_f(sums)
        for _ in range(blocks):
            ask(ahead, step)
            acc = _add(tile(w, pitch), dot, minimum, zero, x, acc)
            w, x, ahead = w + size, x + BLOCK, ahead + step
        store_f(sums, acc)
        return
    for _ in range(blocks):
        ask(ahead, step)
        unpacked, row, to = tile(w, pitch), x, sums
        for _ in range(n):
            store_f(to, _add(unpacked, dot, minimum, zero, row, load_f(to)))
            row, to = row + x_pitch, to + ROW
        w, x, ahead = w + size, x + BLOCK, ahead + step


@kernel()
def few_q4_0(w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Blocks of 18 bytes."""
    _clear(n, sums)
    _few(q4_0_tile, dot_4, 18, False, 8, w, pitch, blocks, x, x_pitch, n, sums, ahead, step)


@kernel()
def few_q5_0(w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Blocks of 22 bytes."""
    _clear(n, sums)
    _few(q5_0_tile, dot_5, 22, False, 16, w, pitch, blocks, x, x_pitch, n, sums, ahead, step)


@kernel()
def few_q5_1(w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Blocks of 24 bytes."""
    _clear(n, sums)
    _few(q5_1_tile, dot_5, 24, True, 0, w, pitch, blocks, x, x_pitch, n, sums, ahead, step)


@kernel()
def few_q8_0(w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Blocks of 34 bytes."""
    _clear(n, sums)
    _few(q8_0_tile, dot_8, 34, False, BIAS, w, pitch, blocks, x, x_pitch, n, sums, ahead, step)


@kernel()
def few_iq4_nl(w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Blocks of 18 bytes."""
    _clear(n, sums)
    _few(iq4_nl_tile, dot_8, 18, False, BIAS, w, pitch, blocks, x, x_pitch, n, sums, ahead, step)


# Q4_1: four blocks of a row are five times 16 bytes, with which nothing has to be gathered but in pieces of 16.


@kernel(inlined=True)
def _q4_1(a: Any, b: Any, c: Any, d: Any, dm: Any) -> Any:
    q = (a, b, c, d)
    return field4(q, 0, NIBBLES), upper4(q), low_half(dm), high_half(dm)


@kernel(inlined=True)
def _add_q4_1(tile: Any, x: int, acc: Any) -> Any:
    low, high, a, b = tile
    acc = fma(to_f(dot_nibbles(low, high, x, 0)), mul_f(a, splat_f(get_f32(x + 32))), acc)
    return fma(b, splat_f(get_f32(x + 40)), acc)


@kernel(inlined=True)
def _rows_q4_1(tile: Any, x: int, x_pitch: int, n: int, sums: int) -> None:
    for _ in range(n):
        store_f(sums, _add_q4_1(tile, x, load_f(sums)))
        x, sums = x + x_pitch, sums + ROW


@kernel()
def few_q4_1(w: int, pitch: int, blocks: int, x: int, x_pitch: int, n: int, sums: int, ahead: int, step: int) -> None:
    """Blocks of 20 bytes."""
    _clear(n, sums)
    if n == 1:
        acc = splat_f(NOTHING)
        for _ in range(blocks // 4):
            ask(ahead, 4 * step)
            g, h = gather16(w, pitch), gather16(w + 16, pitch)
            acc = _add_q4_1(_q4_1(g[1], g[2], g[3], h[0], g[0]), x, acc)
            g = gather16(w + 32, pitch)
            acc = _add_q4_1(_q4_1(h[2], h[3], g[0], g[1], h[1]), x + BLOCK, acc)
            h = gather16(w + 48, pitch)
            acc = _add_q4_1(_q4_1(g[3], h[0], h[1], h[2], g[2]), x + 2 * BLOCK, acc)
            g = gather16(w + 64, pitch)
            acc = _add_q4_1(_q4_1(g[0], g[1], g[2], g[3], h[3]), x + 3 * BLOCK, acc)
            w, x, ahead = w + 80, x + 4 * BLOCK, ahead + 4 * step
        store_f(sums, acc)
    else:
        for _ in range(blocks // 4):
            ask(ahead, 4 * step)
            g, h = gather16(w, pitch), gather16(w + 16, pitch)
            _rows_q4_1(_q4_1(g[1], g[2], g[3], h[0], g[0]), x, x_pitch, n, sums)
            g = gather16(w + 32, pitch)
            _rows_q4_1(_q4_1(h[2], h[3], g[0], g[1], h[1]), x + BLOCK, x_pitch, n, sums)
            h = gather16(w + 48, pitch)
            _rows_q4_1(_q4_1(g[3], h[0], h[1], h[2], g[2]), x + 2 * BLOCK, x_pitch, n, sums)
            g = gather16(w + 64, pitch)
            _rows_q4_1(_q4_1(g[0], g[1], g[2], g[3], h[3]), x + 3 * BLOCK, x_pitch, n, sums)
            w, x, ahead = w + 80, x + 4 * BLOCK, ahead + 4 * step
    _few(q4_1_tile, dot_4, 20, True, 0, w, pitch, blocks % 4, x, x_pitch, n, sums, ahead, step)
