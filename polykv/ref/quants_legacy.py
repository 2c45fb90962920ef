"""Dequantization of plain floats and of the 32-value block types.

    Q4_0, Q5_0, Q6_0, Q8_0    y = d * (q - zero)        d fp16; zero = 8, 16, 32, 0
    Q4_1, Q5_1                y = d * q + m             d, m fp16

Each function takes uint8 blocks [..., block_bytes] and gives float32 [..., block_values]. Nibbles are split in halves:
byte j holds value j (low) and value j + 16 (high). The fifth bits of Q5 types are one little-endian uint32, bit j for
value j. Q6_0 is a type of caches only. Source: the block structs of ggml and ik_llama.cpp (docs/FORMATS.md).
"""

from __future__ import annotations

import numpy as np

from polykv.types import F32, U8


def f32(blocks: U8) -> F32:
    """IEEE float32."""
    return blocks.view("<f4").astype(np.float32)


def f16(blocks: U8) -> F32:
    """IEEE float16; every value is a float32 too."""
    return blocks.view("<f2").astype(np.float32)


def bf16(blocks: U8) -> F32:
    """bfloat16 is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def q4_0(blocks: U8) -> F32:
    """d @0, nibbles @2."""
    d = half(blocks, 0)
    q = nibbles(blocks[..., 2:])
    q -= 8
    return np.multiply(q, d, out=q)


def q4_1(blocks: U8) -> F32:
    """d @0, m @2, nibbles @4."""
    d, m = half(blocks, 0), half(blocks, 2)
    q = nibbles(blocks[..., 4:])
    q *= d
    return np.add(q, m, out=q)


def q5_0(blocks: U8) -> F32:
    """d @0, fifth bits @2, nibbles @6."""
    return half(blocks, 0) * (nibbles(blocks[..., 6:]) + fifth_bits(blocks[..., 2:6]) - 16)


def q5_1(blocks: U8) -> F32:
    """d @0, m @2, fifth bits @4, nibbles @8."""
    return half(blocks, 0) * (nibbles(blocks[..., 8:]) + fifth_bits(blocks[..., 4:8])) + half(blocks, 2)


def q6_0(blocks: U8) -> F32:
    """d @0, upper bits @2 (byte j % 8: values j and j + 16, for j >= 8 at bit 4), nibbles @10."""
    places = np.array([[0, 2], [4, 6]], np.uint8)
    # [..., j // 8, half, j % 8] to value order: half, j // 8, j % 8.
    high = blocks[..., None, None, 2:10] >> places[:, :, None] & np.uint8(3)
    high = np.asarray(np.moveaxis(high, -2, -3).reshape(*blocks.shape[:-1], 32), np.float32)
    return np.asarray(half(blocks, 0) * (nibbles(blocks[..., 10:]) + 16 * high - 32), np.float32)


def q8_0(blocks: U8) -> F32:
    """d @0, int8 codes @2."""
    return half(blocks, 0) * blocks[..., 2:].view(np.int8).astype(np.float32)


def half(blocks: U8, at: int) -> F32:
    """The fp16 field at byte `at` as float32 [..., 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2").astype(np.float32)


def nibbles(qs: U8) -> F32:
    """float32 [..., 2n] of bytes [..., n]: all low nibbles, then all high ones."""
    n = qs.shape[-1]
    q = np.empty((*qs.shape[:-1], 2 * n), np.float32)
    q[..., :n] = qs & 15
    q[..., n:] = qs >> 4
    return q


def fifth_bits(qh: U8) -> F32:
    """16 where the fifth bit of a value is set, else 0: float32 [..., 32] of bytes [..., 4]."""
    return np.unpackbits(qh, axis=-1, bitorder="little").astype(np.float32) * 16
