"""The scalar codecs: 32 consecutive values share one fp16 scale.

    q8_0    d = max|x| / 127                    q = round(x / d)          y = d * q
    q4_0    d = (x of largest magnitude) / -8   q = trunc(x / d + 8.5)    y = d * (q - 8)

Exchange bytes of a block: d fp16 @0, then 32 int8 (q8_0) or 16 bytes of nibbles, value j low and j + 16 high (q4_0).
Codes are chosen with the float32 scale, before it is rounded to fp16. Source: the reference quantizers of ggml
(docs/FORMATS.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.ref.quants_legacy import q4_0 as dequantize_q4_0
from polykv.ref.quants_legacy import q8_0 as dequantize_q8_0
from polykv.types import F32, U8

F16_MAX = 65504.0


def encode_q8_0(x: F32) -> U8:
    """x [..., 32 n] -> uint8 [..., 34 n]."""
    codes, d = int8_blocks(_blocks(x), limit=F16_MAX)
    return _join(d, codes.view(np.uint8), x.shape)


def encode_q4_0(x: F32) -> U8:
    """x [..., 32 n] -> uint8 [..., 18 n]."""
    blocks = _blocks(x)
    peak = np.take_along_axis(blocks, np.argmax(np.abs(blocks), axis=-1, keepdims=True), axis=-1)
    d = np.clip(peak / np.float32(-8), -F16_MAX, F16_MAX)
    scaled = blocks * _inverse(d) + np.float32(8.5)
    q = np.clip(scaled, 0, 15).astype(np.uint8)
    return _join(d, q[..., :16] | q[..., 16:] << 4, x.shape)


def decode_q8_0(data: U8) -> F32:
    """uint8 [..., 34 n] -> [..., 32 n]."""
    return dequantize_q8_0(data.reshape(*data.shape[:-1], -1, 34)).reshape(*data.shape[:-1], -1)


def decode_q4_0(data: U8) -> F32:
    """uint8 [..., 18 n] -> [..., 32 n]."""
    return dequantize_q4_0(data.reshape(*data.shape[:-1], -1, 18)).reshape(*data.shape[:-1], -1)


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


def _blocks(x: F32) -> F32:
    return x.reshape(*x.shape[:-1], -1, 32)


def _join(d: F32, codes: U8, shape: tuple[int, ...]) -> U8:
    """fp16 scales and code bytes, block by block, as one byte string per vector."""
    return np.concatenate([d.astype("<f2").view(np.uint8), codes], axis=-1).reshape(*shape[:-1], -1)
