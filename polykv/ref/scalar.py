"""The scalar codecs: 32 consecutive values share one fp16 scale.

    q8_0    d = max|x| / 127                    q = round(x / d)          y = d * q
    q4_0    d = (x of largest magnitude) / -8   q = trunc(x / d + 8.5)    y = d * (q - 8)

Exchange bytes of a block: d fp16 @0, then 32 int8 (q8_0) or 16 bytes of nibbles, value j low and j + 16 high (q4_0).
Codes are chosen with the float32 scale, before it is rounded to fp16. Source: the reference quantizers of ggml
(docs/FORMATS.md).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from polykv.ref.quants_legacy import q4_0 as dequantize_q4_0
from polykv.ref.quants_legacy import q8_0 as dequantize_q8_0
from polykv.types import F32, U8

F16_MAX = 65504.0
T = TypeVar("T", bound=np.generic)


def encode_q8_0(x: F32) -> U8:
    """x [..., 32 n] -> uint8 [..., 34 n]."""
    codes, d = int8_blocks(split(x, 32), limit=F16_MAX)
    return _join(d, codes.view(np.uint8))


def encode_q4_0(x: F32) -> U8:
    """x [..., 32 n] -> uint8 [..., 18 n]."""
    blocks = split(x, 32)
    peak = np.take_along_axis(blocks, np.argmax(np.abs(blocks), axis=-1, keepdims=True), axis=-1)
    d = np.clip(peak / np.float32(-8), -F16_MAX, F16_MAX)
    scaled = blocks * _inverse(d) + np.float32(8.5)
    q = np.clip(scaled, 0, 15).astype(np.uint8)
    return _join(d, q[..., :16] | q[..., 16:] << 4)


def decode_q8_0(data: U8) -> F32:
    """uint8 [..., 34 n] -> [..., 32 n]."""
    return flat(dequantize_q8_0(split(data, 34)))


def decode_q4_0(data: U8) -> F32:
    """uint8 [..., 18 n] -> [..., 32 n]."""
    return flat(dequantize_q4_0(split(data, 18)))


def int8_blocks(x: F32, limit: float) -> tuple[npt.NDArray[np.int8], F32]:
    """Codes [..., 32] and float32 scales [..., 1] of blocks x [..., 32]; scales are at most `limit`."""
    d = np.minimum(np.max(np.abs(x), axis=-1, keepdims=True) / np.float32(127), np.float32(limit))
    # Half away from zero, in float64: in float32 the sum 0.49999997 + 0.5 would round up to 1.
    scaled = (x * _inverse(d)).astype(np.float64)
    codes = np.clip(np.trunc(scaled + np.copysign(0.5, scaled)), -127, 127)
    return codes.astype(np.int8), d


def _inverse(d: F32) -> F32:
    """1 / d, and 0 for a scale that float32 cannot invert (fp16 stores it as zero anyway)."""
    safe = np.abs(d) >= np.finfo(np.float32).tiny
    return np.where(safe, np.float32(1) / np.where(safe, d, np.float32(1)), np.float32(0))


def _join(d: F32, codes: U8) -> U8:
    """fp16 scales and code bytes, block by block, as one byte string per vector."""
    return flat(np.concatenate([d.astype("<f2").view(np.uint8), codes], axis=-1))


def split(a: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    """[..., n size] -> [..., n, size]."""
    return a.reshape(*a.shape[:-1], a.shape[-1] // size, size)


def flat(a: npt.NDArray[T]) -> npt.NDArray[T]:
    """[..., n, size] -> [..., n size]."""
    return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])
