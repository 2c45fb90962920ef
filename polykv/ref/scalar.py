"""The scalar codecs: 32 consecutive values share one fp16 scale d, some also a minimum m.

    q8_0               d = max|x| / 127               q = round(x / d)              y = d * q
    q6_0 q5_0 q4_0     d = peak / -h, h = 32, 16, 8   q = trunc(x / d + h + 0.5)    y = d * (q - h)
    q5_1 q4_1          d = (max - min) / top, m = min q = trunc((x - m) / d + 0.5)  y = d * q + m      top = 31, 15
    iq4_nl             table[q] nearest to x / (peak / -127), d fitted to them      y = d * table[q]

peak is the value of largest magnitude (the first on a tie). Codes are chosen with the float32 scale, before it is
rounded to fp16. Bytes of a block: d, m if any, upper bits if any, then 32 int8 (q8_0) or 16 bytes of nibbles, value j
low and j + 16 high. Source: the reference quantizers of ggml and ik_llama.cpp (docs/FORMATS.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.ref import quants_iq, quants_legacy
from polykv.ref.blocks import flat, split
from polykv.types import F32, U8, Codec, Family

F16_MAX = 65504.0


def encode(codec: Codec, x: F32) -> U8:
    """x [..., 32 n] -> uint8 [..., block_bytes n]."""
    return flat(_ENCODERS[codec.family](split(x, 32)))


def decode(codec: Codec, data: U8) -> F32:
    """uint8 [..., block_bytes n] -> [..., 32 n]."""
    return flat(_DECODERS[codec.family](split(data, codec.block_bytes)))


def int8_blocks(x: F32, limit: float) -> tuple[npt.NDArray[np.int8], F32]:
    """Codes [..., 32] and float32 scales [..., 1] of blocks x [..., 32]; scales are at most `limit`."""
    d = np.minimum(np.max(np.abs(x), axis=-1, keepdims=True) / np.float32(127), np.float32(limit))
    # Half away from zero, in float64: in float32 the sum 0.49999997 + 0.5 would round up to 1.
    scaled = (x * _inverse(d)).astype(np.float64)
    codes = np.clip(np.trunc(scaled + np.copysign(0.5, scaled)), -127, 127)
    return codes.astype(np.int8), d


def _q8_0(x: F32) -> U8:
    codes, d = int8_blocks(x, limit=F16_MAX)
    return _join(d, codes.view(np.uint8))


def _q6_0(x: F32) -> U8:
    q, d = _signed(x, 32)
    high = q >> 4
    # Byte j % 8 takes the upper two bits of values j and j + 16, those of j < 8 below those of j >= 8.
    pairs = high[..., :16] | high[..., 16:] << 2
    return _join(d, np.asarray(pairs[..., :8] | pairs[..., 8:] << 4, np.uint8), _nibbles(q))


def _q5_0(x: F32) -> U8:
    q, d = _signed(x, 16)
    return _join(d, _fifth_bits(q), _nibbles(q))


def _q4_0(x: F32) -> U8:
    q, d = _signed(x, 8)
    return _join(d, _nibbles(q))


def _q5_1(x: F32) -> U8:
    q, d, m = _ranged(x, 31)
    return _join(d, _half(m), _fifth_bits(q), _nibbles(q))


def _q4_1(x: F32) -> U8:
    q, d, m = _ranged(x, 15)
    return _join(d, _half(m), _nibbles(q))


def _iq4_nl(x: F32) -> U8:
    table = quants_iq.TABLE
    # What fp16 cannot hold is clamped here: products of six such values would leave the range of float32.
    x = np.clip(x, -127 * F16_MAX, 127 * F16_MAX)
    d = _peak(x) / np.float32(-127)
    v = x * _inverse(d)
    upper = np.clip(np.searchsorted(table, v, side="right"), 1, 15)
    q = np.where(v - table[upper - 1] < table[upper] - v, upper - 1, upper).astype(np.uint8)
    # The scale of least squared error, values weighted by their squares; summed in order, the bytes depend on it.
    weighted = x * x * table[q]
    xy = np.add.accumulate(weighted * x, axis=-1)[..., -1:]
    yy = np.add.accumulate(weighted * table[q], axis=-1)[..., -1:]
    fitted = np.where(yy > 0, xy / np.where(yy > 0, yy, np.float32(1)), d)
    return _join(np.clip(fitted, -F16_MAX, F16_MAX), _nibbles(q))


def _signed(x: F32, half: int) -> tuple[U8, F32]:
    """Codes [..., 32] from 0 to 2 half - 1, and scales [..., 1] such that the peak has code 0."""
    d = np.clip(_peak(x) / np.float32(-half), -F16_MAX, F16_MAX)
    return np.clip(x * _inverse(d) + np.float32(half + 0.5), 0, 2 * half - 1).astype(np.uint8), d


def _ranged(x: F32, top: int) -> tuple[U8, F32, F32]:
    """Codes [..., 32] from 0 to top, scales and minima [..., 1]."""
    m = np.clip(x.min(axis=-1, keepdims=True), -F16_MAX, F16_MAX)
    d = np.clip((x.max(axis=-1, keepdims=True) - m) / np.float32(top), 0, F16_MAX)
    return np.clip((x - m) * _inverse(d) + np.float32(0.5), 0, top).astype(np.uint8), d, m


def _peak(x: F32) -> F32:
    return np.take_along_axis(x, np.argmax(np.abs(x), axis=-1, keepdims=True), axis=-1)


def _inverse(d: F32) -> F32:
    """1 / d, and 0 for a scale that float32 cannot invert (fp16 stores it as zero anyway)."""
    safe = np.abs(d) >= np.finfo(np.float32).tiny
    return np.where(safe, np.float32(1) / np.where(safe, d, np.float32(1)), np.float32(0))


def _nibbles(q: U8) -> U8:
    return np.asarray(q[..., :16] & 15 | q[..., 16:] << 4, np.uint8)


def _fifth_bits(q: U8) -> U8:
    return np.packbits(q >> 4, axis=-1, bitorder="little")


def _half(x: F32) -> U8:
    return x.astype("<f2").view(np.uint8)


def _join(d: F32, *parts: U8) -> U8:
    """The bytes of blocks [..., block_bytes]."""
    return np.concatenate([_half(d), *parts], axis=-1)


_ENCODERS = {
    Family.Q8_0: _q8_0,
    Family.Q6_0: _q6_0,
    Family.Q5_1: _q5_1,
    Family.Q5_0: _q5_0,
    Family.Q4_1: _q4_1,
    Family.Q4_0: _q4_0,
    Family.IQ4_NL: _iq4_nl,
}
_DECODERS = {
    Family.Q8_0: quants_legacy.q8_0,
    Family.Q6_0: quants_legacy.q6_0,
    Family.Q5_1: quants_legacy.q5_1,
    Family.Q5_0: quants_legacy.q5_0,
    Family.Q4_1: quants_legacy.q4_1,
    Family.Q4_0: quants_legacy.q4_0,
    Family.IQ4_NL: quants_iq.iq4_nl,
}
