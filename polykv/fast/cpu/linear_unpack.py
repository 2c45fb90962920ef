"""Unpack a tile: 8 rows of packed blocks become codes and scales that the product kernels read.

For every 32 columns the panel gets PANEL_BLOCK bytes:

    codes @0    8 vectors; vector i, lane r: columns 4i .. 4i + 3 of row r as bytes
    a @256      float32 [8 rows], scale of the 32 columns; types with HALVES: a second vector for columns 16 .. 31
    b @320      minimums likewise, for types with MINIMUM

Here: the types whose blocks are 32 columns; byte layouts in docs/FORMATS.md. `src` is the address of the first block
of row 0, `pitch` the bytes from row to row (0 repeats one row).
"""

from __future__ import annotations

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


@kernel()
def q4_0(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, nibbles [16] @2: value j low, value j + 16 high."""
    for _ in range(blocks):
        q = gather16(src + 2, pitch)
        store4(panel, field4(q, 0, NIBBLES))
        store4(panel + 128, field4(q, 4, NIBBLES))
        store_f(panel + PANEL_A, low_half(gather2(src, pitch)))
        src += 18
        panel += PANEL_BLOCK


@kernel()
def q4_1(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, m @2, nibbles [16] @4."""
    for _ in range(blocks):
        q = gather16(src + 4, pitch)
        store4(panel, field4(q, 0, NIBBLES))
        store4(panel + 128, field4(q, 4, NIBBLES))
        dm = gather4(src, pitch)
        store_f(panel + PANEL_A, low_half(dm))
        store_f(panel + PANEL_B, high_half(dm))
        src += 20
        panel += PANEL_BLOCK


@kernel()
def q5_0(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, fifth bits uint32 @2, nibbles [16] @6."""
    _five(src, pitch, blocks, panel, 0)


@kernel()
def q5_1(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, m @2, fifth bits uint32 @4, nibbles [16] @8."""
    _five(src, pitch, blocks, panel, 2)


@kernel()
def _five(src: int, pitch: int, blocks: int, panel: int, with_min: int) -> None:
    """with_min is the size of m: 0 or 2. Without m, what lands in the unused minimums does not matter."""
    for _ in range(blocks):
        q, h = gather16(src + 6 + with_min, pitch), fifth_bits(gather4(src + 2 + with_min, pitch))
        store4(panel, join4(field4(q, 0, NIBBLES), h[:4], 4))
        store4(panel + 128, join4(field4(q, 4, NIBBLES), h[4:], 4))
        dm = gather4(src, pitch)
        store_f(panel + PANEL_A, low_half(dm))
        store_f(panel + PANEL_B, high_half(dm))
        src += 22 + with_min
        panel += PANEL_BLOCK


@kernel()
def q8_0(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, int8 codes [32] @2."""
    for _ in range(blocks):
        store4(panel, biased4(gather16(src + 2, pitch)))
        store4(panel + 128, biased4(gather16(src + 18, pitch)))
        store_f(panel + PANEL_A, low_half(gather2(src, pitch)))
        src += 34
        panel += PANEL_BLOCK


@kernel()
def iq4_nl(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, nibbles [16] @2."""
    for _ in range(blocks):
        q = gather16(src + 2, pitch)
        store4(panel, iq4_codes(field4(q, 0, NIBBLES)))
        store4(panel + 128, iq4_codes(field4(q, 4, NIBBLES)))
        store_f(panel + PANEL_A, low_half(gather2(src, pitch)))
        src += 18
        panel += PANEL_BLOCK
