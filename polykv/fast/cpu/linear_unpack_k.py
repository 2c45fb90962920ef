"""Unpack super-blocks of 256 columns: the K types and IQ4_XS. Panel layout: see `linear_unpack`.

A super-block fills 8 panel blocks of 32 columns. The small integer scales of 8 rows are lanes of one vector and are
unpacked with shifts, like the codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_types import PANEL_A, PANEL_B, PANEL_BLOCK
from polykv.fast.cpu.simd import splat_f, splat_i, store_f
from polykv.fast.cpu.simd_math import (
    field,
    high_half,
    low_half,
    mul_f,
    or_i,
    shl,
    signed_byte,
    sub_i,
    to_f,
)
from polykv.fast.cpu.simd_weights import field4, gather2, gather4, gather16, iq4_codes, join4, load4, store4

NIBBLES, PAIRS, ONES = 0x0F0F0F0F, 0x03030303, 0x01010101
MINUS = np.float32(-1)


@kernel()
def q2_k(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Scales and minimums [16] @0, 2-bit codes [64] @16, d @80, dmin @82."""
    for _ in range(blocks // 8):
        _two_bits(src + 16, pitch, panel)
        _q2_scales(src, pitch, panel)
        src, panel = src + 84, panel + 8 * PANEL_BLOCK


@kernel()
def q3_k(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Third bits [32] @0, 2-bit codes [64] @32, scales [12] @96, d @108."""
    for _ in range(blocks // 8):
        _two_bits(src + 32, pitch, panel)
        _add_third(src, pitch, panel)
        _q3_scales(src + 96, pitch, panel)
        src, panel = src + 110, panel + 8 * PANEL_BLOCK


@kernel()
def q4_k(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, dmin @2, scales and minimums [12] @4, nibbles [128] @16."""
    for _ in range(blocks // 8):
        _scale_min(src, pitch, panel)
        _nibbles(src + 16, pitch, panel)
        src, panel = src + 144, panel + 8 * PANEL_BLOCK


@kernel()
def q5_k(src: int, pitch: int, blocks: int, panel: int) -> None:
    """As q4_k, with fifth bits [32] @16 and nibbles @48."""
    for _ in range(blocks // 8):
        _scale_min(src, pitch, panel)
        _nibbles(src + 48, pitch, panel)
        _add_fifth(src + 16, pitch, panel)
        src, panel = src + 176, panel + 8 * PANEL_BLOCK


@kernel()
def q6_k(src: int, pitch: int, blocks: int, panel: int) -> None:
    """Low nibbles [128] @0, upper two bits [64] @128, int8 scales [16] @192, d @208."""
    for _ in range(blocks // 8):
        _six_bits(src, pitch, panel)
        _q6_scales(src, pitch, panel)
        src, panel = src + 210, panel + 8 * PANEL_BLOCK


@kernel()
def iq4_xs(src: int, pitch: int, blocks: int, panel: int) -> None:
    """d @0, upper scale bits uint16 @2, lower scale nibbles [4] @4, nibbles [128] @8."""
    for _ in range(blocks // 8):
        _iq4(src, pitch, panel)
        src, panel = src + 136, panel + 8 * PANEL_BLOCK


@kernel()
def _scale_min(src: int, pitch: int, panel: int) -> None:
    """d @0, dmin @2, 8 scales and 8 mins of 6 bits in 12 bytes @4.

    Bytes 0-3: low 6 bits of scales 0-3; bytes 4-7 of mins 0-3; bytes 8-11: nibbles of scales and mins 4-7, whose upper
    two bits are the top bits of bytes 0-3 and 4-7.
    """
    head = gather16(src, pitch)
    d, dmin = low_half(head[0]), high_half(head[0])
    dmin = mul_f(dmin, splat_f(MINUS))
    for j in range(4):
        _put_scale_min(panel, j, d, dmin, field(head[1], 8 * j, 63), field(head[2], 8 * j, 63))
        s = or_i(field(head[3], 8 * j, 15), shl(field(head[1], 8 * j + 6, 3), 4))
        m = or_i(field(head[3], 8 * j + 4, 15), shl(field(head[2], 8 * j + 6, 3), 4))
        _put_scale_min(panel, j + 4, d, dmin, s, m)


@kernel()
def _put_scale_min(panel: int, j: int, d: Any, dmin: Any, s: Any, m: Any) -> None:
    store_f(panel + j * PANEL_BLOCK + PANEL_A, mul_f(d, to_f(s)))
    store_f(panel + j * PANEL_BLOCK + PANEL_B, mul_f(dmin, to_f(m)))


@kernel()
def _nibbles(src: int, pitch: int, panel: int) -> None:
    """32 bytes hold one sub-block in their low and the next in their high halves; 4 times."""
    for c in range(8):
        q = gather16(src + 16 * c, pitch)
        to = panel + c // 2 * 2 * PANEL_BLOCK + c % 2 * 128
        store4(to, field4(q, 0, NIBBLES))
        store4(to + PANEL_BLOCK, field4(q, 4, NIBBLES))


@kernel()
def _add_fifth(src: int, pitch: int, panel: int) -> None:
    """Bit j of byte l is the fifth bit of value l of sub-block j."""
    for c in range(2):
        h = gather16(src + 16 * c, pitch)
        for j in range(8):
            _join_at(panel + j * PANEL_BLOCK + 128 * c, field4(h, j, ONES), 4)


@kernel()
def _join_at(p: int, top: Any, n: int) -> None:
    store4(p, join4(load4(p), top, n))


@kernel()
def _two_bits(src: int, pitch: int, panel: int) -> None:
    """32 bytes hold 128 values: bits 2k and 2k + 1 those of the k-th 32; twice."""
    for c in range(4):
        q = gather16(src + 16 * c, pitch)
        to = panel + c // 2 * 4 * PANEL_BLOCK + c % 2 * 128
        for k in range(4):
            store4(to + k * PANEL_BLOCK, field4(q, 2 * k, PAIRS))


@kernel()
def _q2_scales(src: int, pitch: int, panel: int) -> None:
    """16 bytes @0: scale low, minimum high; d @80, dmin @82."""
    s, dm = gather16(src, pitch), gather4(src + 80, pitch)
    d, dmin = low_half(dm), mul_f(high_half(dm), splat_f(MINUS))
    for i in range(4):
        for j in range(4):
            to = panel + (2 * i + j // 2) * PANEL_BLOCK + 32 * (j % 2)
            store_f(to + PANEL_A, mul_f(d, to_f(field(s[i], 8 * j, 15))))
            store_f(to + PANEL_B, mul_f(dmin, to_f(field(s[i], 8 * j + 4, 15))))


@kernel()
def _add_third(src: int, pitch: int, panel: int) -> None:
    """Bit j of byte l is the third bit of value 32 j + l."""
    for c in range(2):
        h = gather16(src + 16 * c, pitch)
        for j in range(8):
            _join_at(panel + j * PANEL_BLOCK + 128 * c, field4(h, j, ONES), 2)


@kernel()
def _q3_scales(src: int, pitch: int, panel: int) -> None:
    """16 scales of 6 bits in 12 bytes, d @12.

    Bytes 0-7: low nibbles of scales 0-7, then of 8-15 in the high halves; the upper two bits of scale i are bits
    2 * (i // 4) of byte 8 + i % 4.
    """
    low, mid, top = gather4(src, pitch), gather4(src + 4, pitch), gather4(src + 8, pitch)
    d, offset = low_half(gather2(src + 12, pitch)), splat_i(32)
    for j in range(4):
        for k in range(2):
            first = or_i(field(low, 8 * j + 4 * k, 15), shl(field(top, 8 * j + 4 * k, 3), 4))
            second = or_i(field(mid, 8 * j + 4 * k, 15), shl(field(top, 8 * j + 4 * k + 2, 3), 4))
            to = panel + (4 * k + j // 2) * PANEL_BLOCK + PANEL_A + 32 * (j % 2)
            store_f(to, mul_f(d, to_f(sub_i(first, offset))))
            store_f(to + 2 * PANEL_BLOCK, mul_f(d, to_f(sub_i(second, offset))))


@kernel()
def _six_bits(src: int, pitch: int, panel: int) -> None:
    """64 bytes of nibbles and 32 of bit pairs hold 128 values, 32 by 32; twice."""
    for half in range(2):
        for c in range(2):
            ql, qh = src + 64 * half + 16 * c, gather16(src + 128 + 32 * half + 16 * c, pitch)
            q, r = gather16(ql, pitch), gather16(ql + 32, pitch)
            to = panel + 4 * half * PANEL_BLOCK + 128 * c
            store4(to, join4(field4(q, 0, NIBBLES), field4(qh, 0, PAIRS), 4))
            store4(to + PANEL_BLOCK, join4(field4(r, 0, NIBBLES), field4(qh, 2, PAIRS), 4))
            store4(to + 2 * PANEL_BLOCK, join4(field4(q, 4, NIBBLES), field4(qh, 4, PAIRS), 4))
            store4(to + 3 * PANEL_BLOCK, join4(field4(r, 4, NIBBLES), field4(qh, 6, PAIRS), 4))


@kernel()
def _q6_scales(src: int, pitch: int, panel: int) -> None:
    s, d = gather16(src + 192, pitch), low_half(gather2(src + 208, pitch))
    for i in range(4):
        for j in range(4):
            to = panel + (2 * i + j // 2) * PANEL_BLOCK + PANEL_A + 32 * (j % 2)
            store_f(to, mul_f(d, to_f(signed_byte(s[i], j))))


@kernel()
def _iq4(src: int, pitch: int, panel: int) -> None:
    """Scale j: nibble j of 4 bytes and bits 2j, 2j + 1 of the uint16, minus 32."""
    top, low = gather4(src, pitch), gather4(src + 4, pitch)
    d, offset = low_half(top), splat_i(32)
    for j in range(8):
        to = panel + j * PANEL_BLOCK
        s = or_i(field(low, 4 * j, 15), shl(field(top, 16 + 2 * j, 3), 4))
        store_f(to + PANEL_A, mul_f(d, to_f(sub_i(s, offset))))
        q = gather16(src + 8 + 16 * j, pitch)
        store4(to, iq4_codes(field4(q, 0, NIBBLES)))
        store4(to + 128, iq4_codes(field4(q, 4, NIBBLES)))
