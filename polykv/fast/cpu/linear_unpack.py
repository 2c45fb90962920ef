"""Unpack a tile: 8 rows of packed blocks become codes and scales that the product kernels read.

For every 32 columns the panel gets PANEL_BLOCK bytes:

    codes @0    8 vectors; vector i, lane r: columns 4i .. 4i + 3 of row r as bytes
    a @256      float32 [8 rows], scale of the 32 columns; types with HALVES: a second vector for columns 16 .. 31
    b @320      minimums likewise, for types with MINIMUM

Here: the types whose blocks are 32 columns; byte layouts in docs/FORMATS.md. `src` is the address of the first block
of row 0, `pitch` the bytes from row to row (0 repeats one row).
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_types import PANEL_A, PANEL_B, PANEL_BLOCK
from polykv.fast.cpu.simd import store_f
from polykv.fast.cpu.simd_math import high_half, low_half
from polykv.fast.cpu.simd_weights import (
    biased4,
    field4,
    fifth_bits,
    gather2,
    gather4,
    gather16,
    iq4_codes,
    join4,
    store4,
)

NIBBLES = 0x0F0F0F0F


@kernel(inlined=True)
def put(panel: int, tile: Any) -> None:
    """One block to the panel."""
    store4(panel, tile[0])
    store4(panel + 128, tile[1])
    store_f(panel + PANEL_A, tile[2])
    store_f(panel + PANEL_B, tile[3])


@kernel(inlined=True)
def q4_0_tile(src: int, pitch: int) -> Any:
    """d @0, nibbles [16] @2: value j low, value j + 16 high."""
    q, d = gather16(src + 2, pitch), low_half(gather2(src, pitch))
    return field4(q, 0, NIBBLES), field4(q, 4, NIBBLES), d, d


@kernel(inlined=True)
def q4_1_tile(src: int, pitch: int) -> Any:
    """d @0, m @2, nibbles [16] @4."""
    q, dm = gather16(src + 4, pitch), gather4(src, pitch)
    return field4(q, 0, NIBBLES), field4(q, 4, NIBBLES), low_half(dm), high_half(dm)


@kernel(inlined=True)
def q5_0_tile(src: int, pitch: int) -> Any:
    """d @0, fifth bits uint32 @2, nibbles [16] @6."""
    q, h, d = gather16(src + 6, pitch), fifth_bits(gather4(src + 2, pitch)), low_half(gather2(src, pitch))
    return join4(field4(q, 0, NIBBLES), h[:4], 4), join4(field4(q, 4, NIBBLES), h[4:], 4), d, d


@kernel(inlined=True)
def q5_1_tile(src: int, pitch: int) -> Any:
    """d @0, m @2, fifth bits uint32 @4, nibbles [16] @8."""
    q, h, dm = gather16(src + 8, pitch), fifth_bits(gather4(src + 4, pitch)), gather4(src, pitch)
    return join4(field4(q, 0, NIBBLES), h[:4], 4), join4(field4(q, 4, NIBBLES), h[4:], 4), low_half(dm), high_half(dm)


@kernel(inlined=True)
def q8_0_tile(src: int, pitch: int) -> Any:
    """d @0, int8 codes [32] @2."""
    d = low_half(gather2(src, pitch))
    return biased4(gather16(src + 2, pitch)), biased4(gather16(src + 18, pitch)), d, d


@kernel(inlined=True)
def iq4_nl_tile(src: int, pitch: int) -> Any:
    """d @0, nibbles [16] @2."""
    q, d = gather16(src + 2, pitch), low_half(gather2(src, pitch))
    return iq4_codes(field4(q, 0, NIBBLES)), iq4_codes(field4(q, 4, NIBBLES)), d, d


@kernel()
def q4_0(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Blocks of 18 bytes."""
    for i in range(blocks):
        put(panel + PANEL_BLOCK * i, q4_0_tile(src + 18 * i, pitch))


@kernel()
def q4_1(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Blocks of 20 bytes."""
    for i in range(blocks):
        put(panel + PANEL_BLOCK * i, q4_1_tile(src + 20 * i, pitch))


@kernel()
def q5_0(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Blocks of 22 bytes."""
    for i in range(blocks):
        put(panel + PANEL_BLOCK * i, q5_0_tile(src + 22 * i, pitch))


@kernel()
def q5_1(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Blocks of 24 bytes."""
    for i in range(blocks):
        put(panel + PANEL_BLOCK * i, q5_1_tile(src + 24 * i, pitch))


@kernel()
def q8_0(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Blocks of 34 bytes."""
    for i in range(blocks):
        put(panel + PANEL_BLOCK * i, q8_0_tile(src + 34 * i, pitch))


@kernel()
def iq4_nl(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Blocks of 18 bytes."""
    for i in range(blocks):
        put(panel + PANEL_BLOCK * i, iq4_nl_tile(src + 18 * i, pitch))
