"""Dequantization of the K-quants: 256 values, sub-blocks with their own small scales.

    Q2_K        y = d * s * q - dmin * m     16 sub-blocks of 16; s, m 4 bits; q 2 bits
    Q3_K        y = d * (s - 32) * (q - 4)   16 sub-blocks of 16; s 6 bits; q 3 bits
    Q4_K Q5_K   y = d * s * q - dmin * m     8 sub-blocks of 32; s, m 6 bits; q 4 or 5 bits
    Q6_K        y = d * s * (q - 32)         16 sub-blocks of 16; s int8; q 6 bits

Each function takes uint8 blocks [..., block_bytes] and gives float32 [..., 256]. Source: the block structs of ggml
(docs/FORMATS.md). Bit planes are cut out with shifts along a new axis, whose place is the order of the values.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from polykv.ref.quants_legacy import half
from polykv.types import F32, U8


def q2_k(blocks: U8) -> F32:
    """s | m << 4 [16] @0, 2-bit codes [64] @16, d @80, dmin @82."""
    scales = blocks[..., :16]
    s = half(blocks, 80) * (scales & 15)
    m = half(blocks, 82) * (scales >> 4)
    return _scale_min(s, two_bit_planes(blocks[..., 16:80]), m)


def q3_k(blocks: U8) -> F32:
    """Third bits [32] @0, 2-bit codes [64] @32, scales [12] @96, d @108."""
    q = two_bit_planes(blocks[..., 32:96])
    # Value 32*i + l has its third bit in bit i of byte l.
    q |= cut(blocks[..., :32], range(8), 1).reshape(q.shape) << 2
    return _scale(half(blocks, 108) * (scales_q3(blocks[..., 96:108]).astype(np.float32) - 32), q, zero=4)


def q4_k(blocks: U8) -> F32:
    """d @0, dmin @2, scales [12] @4, nibbles [128] @16."""
    s, m = scales_mins(blocks[..., 4:16])
    return _scale_min(half(blocks, 0) * s, nibble_planes(blocks[..., 16:144]), half(blocks, 2) * m)


def q5_k(blocks: U8) -> F32:
    """d @0, dmin @2, scales [12] @4, fifth bits [32] @16, nibbles [128] @48."""
    q = nibble_planes(blocks[..., 48:176])
    q |= cut(blocks[..., 16:48], range(8), 1).reshape(q.shape) << 4
    s, m = scales_mins(blocks[..., 4:16])
    return _scale_min(half(blocks, 0) * s, q, half(blocks, 2) * m)


def q6_k(blocks: U8) -> F32:
    """Low nibbles [128] @0, upper two bits [64] @128, int8 scales [16] @192, d @208."""
    q = cut(blocks[..., :128].reshape(*blocks.shape[:-1], 2, 64), (0, 4), 15).reshape(*blocks.shape[:-1], 256)
    q |= two_bit_planes(blocks[..., 128:192]) << 4
    return _scale(half(blocks, 208) * blocks[..., 192:208].view(np.int8).astype(np.float32), q, zero=32)


def cut(b: U8, shifts: Iterable[int], mask: int) -> U8:
    """The fields (b >> shift) & mask of bytes [..., n], one row per shift: [..., len(shifts), n]."""
    places = np.array(list(shifts), np.uint8)[:, None]
    return np.asarray(b[..., None, :] >> places & np.uint8(mask), np.uint8)


def two_bit_planes(qs: U8) -> U8:
    """[..., 256] codes of bytes [..., 64]: 32 bytes hold 128 values, bits 2i and 2i+1 those of the i-th 32."""
    return cut(qs.reshape(*qs.shape[:-1], 2, 32), (0, 2, 4, 6), 3).reshape(*qs.shape[:-1], 256)


def nibble_planes(qs: U8) -> U8:
    """[..., 256] codes of bytes [..., 128]: 32 bytes hold 32 values in their low and the next 32 in their high half."""
    return cut(qs.reshape(*qs.shape[:-1], 4, 32), (0, 4), 15).reshape(*qs.shape[:-1], 256)


def scales_q3(b: U8) -> U8:
    """16 scales of 12 bytes: nibbles in bytes 0-7 (all low ones first); the upper two bits of scale i are bits
    2*(i//4) of byte 8 + i%4."""
    s = cut(b[..., :8], (0, 4), 15).reshape(*b.shape[:-1], 16)
    s |= cut(b[..., 8:12], (0, 2, 4, 6), 3).reshape(s.shape) << 4
    return s


def scales_mins(b: U8) -> tuple[U8, U8]:
    """8 scales and 8 mins of 12 bytes: the first four of each are the low 6 bits of bytes 0-3 and 4-7; the last four
    have nibbles in bytes 8-11 and their upper two bits on top of bytes 0-3 and 4-7."""
    a, c, e = b[..., 0:4], b[..., 4:8], b[..., 8:12]
    s = np.concatenate([a & 63, e & 15 | a >> 6 << 4], axis=-1)
    m = np.concatenate([c & 63, e >> 4 | c >> 6 << 4], axis=-1)
    return s, m


def _scale(s: F32, q: U8, zero: int) -> F32:
    """s * (q - zero) with one s per sub-block."""
    y = q.reshape(*s.shape, 256 // s.shape[-1]).astype(np.float32) - zero
    y *= s[..., None]
    return y.reshape(q.shape)


def _scale_min(s: F32, q: U8, m: F32) -> F32:
    """s * q - m with one s and one m per sub-block."""
    y = q.reshape(*s.shape, 256 // s.shape[-1]).astype(np.float32) * s[..., None]
    y -= m[..., None]
    return y.reshape(q.shape)
