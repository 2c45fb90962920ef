"""The plain codecs: values as floats of 32 or 16 bits, little-endian.

f32     as it is
f16     rounded to nearest even, beyond +-65504 clamped
bf16    the upper 16 bits of a float32, rounded to nearest even: add 0x7fff and the lowest bit that stays, then cut
"""

from __future__ import annotations

import numpy as np

from polykv.ref import quants_legacy
from polykv.ref.scalar import F16_MAX
from polykv.types import F32, U8, Codec, Family

# The largest finite bfloat16; float32 has larger values, which would round to infinity.
BF16_MAX = np.array(0x7F7F0000, np.uint32).view(np.float32)


def encode(codec: Codec, x: F32) -> U8:
    """x [..., D] -> uint8 [..., block_bytes D]."""
    if codec.family == Family.F32:
        return x.astype("<f4").view(np.uint8)
    if codec.family == Family.F16:
        return np.clip(x, -F16_MAX, F16_MAX).astype("<f2").view(np.uint8)
    bits = np.clip(x, -BF16_MAX, BF16_MAX).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)


def decode(codec: Codec, data: U8) -> F32:
    """uint8 [..., block_bytes D] -> [..., D]."""
    if codec.family == Family.F32:
        return quants_legacy.f32(data)
    return quants_legacy.f16(data) if codec.family == Family.F16 else quants_legacy.bf16(data)
