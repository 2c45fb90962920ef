"""Integer products: an unpacked tile of 8 weight rows times rows of int8 activations.

    y[r, 0:8] = sum over blocks of  a * d_x * (integer dot product)  +  b * d_x * (sum of x codes)

Lane = weight row. The sum over blocks runs in ascending order in one float32 accumulator per weight row, whatever the
number of activation rows: four rows at a time only share the loads of weights. Sums are exact integers before they are
scaled; a type without minimum has the product of its zero code and the activations' sum as start value.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_ahead import ask
from polykv.fast.cpu.linear_types import HALVES, MINIMUM, PANEL_A, PANEL_B, PANEL_BLOCK, WIDE
from polykv.fast.cpu.q8 import BLOCK
from polykv.fast.cpu.simd import get_f32, get_i32, load_f, splat_f, store_f
from polykv.fast.cpu.simd_math import fma, mul_f, to_f
from polykv.fast.cpu.simd_weights import dots1, dots1_half, dots1_wide, dots4, dots4_half, dots4_wide


@kernel()
def tile_q8(
    flags: int, zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int
) -> None:
    """Add the products of `blocks` panel blocks with n rows at x (`pitch` bytes apart) to sums float32 [n, 8].

    With every block of the first rows `size` bytes of memory are asked for, from `ahead` on.
    """
    r = 0
    while r + 4 <= n:
        _four(flags, zero, panel, blocks, x, pitch, sums, ahead, size)
        r, x, sums, size = r + 4, x + 4 * pitch, sums + 128, 0
    while r < n:
        _one(flags, zero, panel, blocks, x, sums, ahead, size)
        r, x, sums, size = r + 1, x + pitch, sums + 32, 0


@kernel()
def _scaled(total: Any, a: Any, d: int, acc: Any) -> Any:
    """acc + total * (a * d), d at an address."""
    return fma(to_f(total), mul_f(a, splat_f(get_f32(d))), acc)


@kernel()
def _one(flags: int, zero: int, w: int, blocks: int, x: int, sums: int, ahead: int, size: int) -> None:
    acc = load_f(sums)
    for _ in range(blocks):
        ask(ahead, size)
        ahead += size
        if flags & HALVES:
            for h in range(2):
                total = dots1_half(w + 128 * h, x + 16 * h, -zero * get_i32(x + 44 + 4 * h))
                acc = _scaled(total, load_f(w + PANEL_A + 32 * h), x + 32, acc)
                if flags & MINIMUM:
                    acc = fma(load_f(w + PANEL_B + 32 * h), splat_f(get_f32(x + 52 + 4 * h)), acc)
        else:
            start = -zero * get_i32(x + 36)
            total = dots1_wide(w, x, start) if flags & WIDE else dots1(w, x, start)
            acc = _scaled(total, load_f(w + PANEL_A), x + 32, acc)
            if flags & MINIMUM:
                acc = fma(load_f(w + PANEL_B), splat_f(get_f32(x + 40)), acc)
        w += PANEL_BLOCK
        x += BLOCK
    store_f(sums, acc)


@kernel()
def _four(flags: int, zero: int, w: int, blocks: int, x: int, pitch: int, sums: int, ahead: int, size: int) -> None:
    a0, a1, a2, a3 = load_f(sums), load_f(sums + 32), load_f(sums + 64), load_f(sums + 96)
    for _ in range(blocks):
        ask(ahead, size)
        ahead += size
        x1, x2, x3 = x + pitch, x + 2 * pitch, x + 3 * pitch
        if flags & HALVES:
            for h in range(2):
                at = 44 + 4 * h
                t = dots4_half(
                    w + 128 * h,
                    x + 16 * h,
                    pitch,
                    -zero * get_i32(x + at),
                    -zero * get_i32(x1 + at),
                    -zero * get_i32(x2 + at),
                    -zero * get_i32(x3 + at),
                )
                a = load_f(w + PANEL_A + 32 * h)
                a0, a1 = _scaled(t[0], a, x + 32, a0), _scaled(t[1], a, x1 + 32, a1)
                a2, a3 = _scaled(t[2], a, x2 + 32, a2), _scaled(t[3], a, x3 + 32, a3)
                if flags & MINIMUM:
                    b, at = load_f(w + PANEL_B + 32 * h), 52 + 4 * h
                    a0, a1 = fma(b, splat_f(get_f32(x + at)), a0), fma(b, splat_f(get_f32(x1 + at)), a1)
                    a2, a3 = fma(b, splat_f(get_f32(x2 + at)), a2), fma(b, splat_f(get_f32(x3 + at)), a3)
        else:
            s0, s1 = -zero * get_i32(x + 36), -zero * get_i32(x1 + 36)
            s2, s3 = -zero * get_i32(x2 + 36), -zero * get_i32(x3 + 36)
            if flags & WIDE:
                t = dots4_wide(w, x, pitch, s0, s1, s2, s3)
            else:
                t = dots4(w, x, pitch, s0, s1, s2, s3)
            a = load_f(w + PANEL_A)
            a0, a1 = _scaled(t[0], a, x + 32, a0), _scaled(t[1], a, x1 + 32, a1)
            a2, a3 = _scaled(t[2], a, x2 + 32, a2), _scaled(t[3], a, x3 + 32, a3)
            if flags & MINIMUM:
                b = load_f(w + PANEL_B)
                a0, a1 = fma(b, splat_f(get_f32(x + 40)), a0), fma(b, splat_f(get_f32(x1 + 40)), a1)
                a2, a3 = fma(b, splat_f(get_f32(x2 + 40)), a2), fma(b, splat_f(get_f32(x3 + 40)), a3)
        w += PANEL_BLOCK
        x += BLOCK
    store_f(sums, a0)
    store_f(sums + 32, a1)
    store_f(sums + 64, a2)
    store_f(sums + 96, a3)
