"""Integer products: an unpacked tile of 8 weight rows times rows of int8 activations.

    y[r, 0:8] = sum over blocks of  a * d_x * (integer dot product)  +  b * d_x * (sum of x codes)

Lane = weight row. The sum over blocks runs in ascending order in one float32 accumulator per weight row, whatever the
number of activation rows: several rows at a time only share the loads of weights. Sums are exact integers before they
are scaled; a type without minimum has the product of its zero code and the activations' sum as start value.

    tile(zero, panel, blocks, x, pitch, n, sums, ahead, size)

adds the products of `blocks` panel blocks with n rows at x (`pitch` bytes apart) to sums float32 [n, 8]; with every
block of the first rows `size` bytes of memory are asked for, from `ahead` on. There is one for each kind of codes
(`linear_code`), for choosing between them in the loops makes the compiler keep loads and sums apart, in memory.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_ahead import ask
from polykv.fast.cpu.linear_types import PANEL_A, PANEL_B, PANEL_BLOCK
from polykv.fast.cpu.q8 import BLOCK
from polykv.fast.cpu.simd import get_f32, load_f, splat_f, store_f
from polykv.fast.cpu.simd_math import fma, mul_f, to_f
from polykv.fast.cpu.simd_weights import EIGHT_ROWS, dots_4, dots_5, dots_8, half_4, half_6

# The products with one, four and eight rows.
ONE_4, FOUR_4, EIGHT_4 = dots_4
ONE_5, FOUR_5, EIGHT_5 = dots_5
ONE_8, FOUR_8, EIGHT_8 = dots_8
HALF_ONE_4, HALF_FOUR_4, HALF_EIGHT_4 = half_4
HALF_ONE_6, HALF_FOUR_6, HALF_EIGHT_6 = half_6


@kernel(inlined=True)
def _scaled(minimum: bool, total: Any, w: int, x: int, dn: int, acc: Any) -> Any:
    """acc plus a sum of products, scaled; dn: where the row of blocks at x has the activations' sum."""
    acc = fma(to_f(total), mul_f(load_f(w + PANEL_A), splat_f(get_f32(x + 32))), acc)
    return fma(load_f(w + PANEL_B), splat_f(get_f32(x + dn)), acc) if minimum else acc


@kernel(inlined=True)
def _scaled4(minimum: bool, t: Any, w: int, x: int, pitch: int, dn: int, acc: Any) -> Any:
    """`_scaled` of four rows."""
    return (
        _scaled(minimum, t[0], w, x, dn, acc[0]),
        _scaled(minimum, t[1], w, x + pitch, dn, acc[1]),
        _scaled(minimum, t[2], w, x + 2 * pitch, dn, acc[2]),
        _scaled(minimum, t[3], w, x + 3 * pitch, dn, acc[3]),
    )


@kernel(inlined=True)
def _load4(p: int) -> Any:
    return load_f(p), load_f(p + 32), load_f(p + 64), load_f(p + 96)


@kernel(inlined=True)
def _store4(p: int, v: Any) -> None:
    for i in range(4):
        store_f(p + 32 * i, v[i])


@kernel(inlined=True)
def _one(
    dots: Any, halves: bool, minimum: bool, zero: int, w: int, blocks: int, x: int, sums: int, ahead: int, size: int
) -> None:
    acc = load_f(sums)
    for _ in range(blocks):
        ask(ahead, size)
        for h in range(2 if halves else 1):
            n, dn = (44 + 4 * h, 52 + 4 * h) if halves else (36, 40)
            t = dots(w + 128 * h, x + 16 * h, 0, zero, n - 16 * h)
            acc = _scaled(minimum, t[0], w + 32 * h, x, dn, acc)
        w, x, ahead = w + PANEL_BLOCK, x + BLOCK, ahead + size
    store_f(sums, acc)


@kernel(inlined=True)
def _four(
    dots: Any,
    halves: bool,
    minimum: bool,
    zero: int,
    w: int,
    blocks: int,
    x: int,
    pitch: int,
    sums: int,
    ahead: int,
    size: int,
) -> None:
    acc = _load4(sums)
    for _ in range(blocks):
        ask(ahead, size)
        for h in range(2 if halves else 1):
            n, dn = (44 + 4 * h, 52 + 4 * h) if halves else (36, 40)
            t = dots(w + 128 * h, x + 16 * h, pitch, zero, n - 16 * h)
            acc = _scaled4(minimum, t, w + 32 * h, x, pitch, dn, acc)
        w, x, ahead = w + PANEL_BLOCK, x + BLOCK, ahead + size
    _store4(sums, acc)


@kernel(inlined=True)
def _eight(
    dots: Any,
    halves: bool,
    minimum: bool,
    zero: int,
    w: int,
    blocks: int,
    x: int,
    pitch: int,
    sums: int,
    ahead: int,
    size: int,
) -> None:
    low, high, rest = _load4(sums), _load4(sums + 128), 4 * pitch
    for _ in range(blocks):
        ask(ahead, size)
        for h in range(2 if halves else 1):
            n, dn = (44 + 4 * h, 52 + 4 * h) if halves else (36, 40)
            t = dots(w + 128 * h, x + 16 * h, pitch, zero, n - 16 * h)
            low = _scaled4(minimum, t[:4], w + 32 * h, x, pitch, dn, low)
            high = _scaled4(minimum, t[4:], w + 32 * h, x + rest, pitch, dn, high)
        w, x, ahead = w + PANEL_BLOCK, x + BLOCK, ahead + size
    _store4(sums, low)
    _store4(sums + 128, high)


@kernel(inlined=True)
def _tile(
    one: Any,
    four: Any,
    eight: Any,
    halves: bool,
    minimum: bool,
    zero: int,
    panel: int,
    blocks: int,
    x: int,
    pitch: int,
    n: int,
    sums: int,
    ahead: int,
    size: int,
) -> None:
    r = 0
    while EIGHT_ROWS and r + 8 <= n:
        _eight(eight, halves, minimum, zero, panel, blocks, x, pitch, sums, ahead, size)
        r, x, sums, size = r + 8, x + 8 * pitch, sums + 256, 0
    while r + 4 <= n:
        _four(four, halves, minimum, zero, panel, blocks, x, pitch, sums, ahead, size)
        r, x, sums, size = r + 4, x + 4 * pitch, sums + 128, 0
    while r < n:
        _one(one, halves, minimum, zero, panel, blocks, x, sums, ahead, size)
        r, x, sums, size = r + 1, x + pitch, sums + 32, 0


@kernel()
def tile_4(zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int) -> None:
    """Codes of 4 bits."""
    _tile(ONE_4, FOUR_4, EIGHT_4, False, False, zero, panel, blocks, x, pitch, n, sums, ahead, size)


@kernel()
def tile_4_minimum(
    zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int
) -> None:
    """Codes of 4 bits, and minimums."""
    _tile(ONE_4, FOUR_4, EIGHT_4, False, True, 0, panel, blocks, x, pitch, n, sums, ahead, size)


@kernel()
def tile_5(zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int) -> None:
    """Codes of 5 bits."""
    _tile(ONE_5, FOUR_5, EIGHT_5, False, False, zero, panel, blocks, x, pitch, n, sums, ahead, size)


@kernel()
def tile_5_minimum(
    zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int
) -> None:
    """Codes of 5 bits, and minimums."""
    _tile(ONE_5, FOUR_5, EIGHT_5, False, True, 0, panel, blocks, x, pitch, n, sums, ahead, size)


@kernel()
def tile_8(zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int) -> None:
    """Codes of 8 bits."""
    _tile(ONE_8, FOUR_8, EIGHT_8, False, False, zero, panel, blocks, x, pitch, n, sums, ahead, size)


@kernel()
def tile_half_4(
    zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int
) -> None:
    """Codes of up to 4 bits, scales of 16 columns."""
    _tile(HALF_ONE_4, HALF_FOUR_4, HALF_EIGHT_4, True, False, zero, panel, blocks, x, pitch, n, sums, ahead, size)


@kernel()
def tile_half_4_minimum(
    zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int
) -> None:
    """Codes of up to 4 bits, scales and minimums of 16 columns."""
    _tile(HALF_ONE_4, HALF_FOUR_4, HALF_EIGHT_4, True, True, 0, panel, blocks, x, pitch, n, sums, ahead, size)


@kernel()
def tile_half_6(
    zero: int, panel: int, blocks: int, x: int, pitch: int, n: int, sums: int, ahead: int, size: int
) -> None:
    """Codes of 6 bits, scales of 16 columns."""
    _tile(HALF_ONE_6, HALF_FOUR_6, HALF_EIGHT_6, True, False, zero, panel, blocks, x, pitch, n, sums, ahead, size)
