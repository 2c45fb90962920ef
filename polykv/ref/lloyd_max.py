"""The scalar rotated codecs: one Lloyd-Max index of 2, 3, 4 or 8 bits per value, one norm per group.

    i_j = number of thresholds <= y_j       stored: fp16 norm, i        decoded: rotate^-1(table[i]) * norm

y is the rotated unit vector (rotation.py). Bytes of a group of g values: the norm, then the bits of all codes in the
fields of `codec.fields`: g/4 bytes with the low two bits of four indices each and g/8 bytes with the high bit of eight
each for 3 bits; g/4, g/2 or g bytes for 2, 4 or 8 bits. The first value has the lowest bits. Source: docs/FORMATS.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.ref.blocks import flat, split
from polykv.ref.rotation import normalised, scaled, sequential, stored_norm
from polykv.types import F32, U8, Codec

BITS = (2, 3, 4, 8)


def encode(codec: Codec, x: F32, group: int) -> U8:
    """x [..., group n] -> packed bytes [..., group_bytes n]."""
    y, n = normalised(codec, x, group, sequential)
    # side="right": a value on a threshold takes the upper index, so zero decodes to the smallest positive level.
    codes = np.searchsorted(np.array(codec.thresholds, np.float32), y, side="right").astype(np.uint8)
    norm = stored_norm(codec, n, np.array(codec.centroids, np.float32)[codes], sequential)
    return pack(codec, norm, codes)


def decode(codec: Codec, data: U8, group: int) -> F32:
    """Rotated values [..., group n] of packed bytes in groups of `group`."""
    norm, codes = unpack(codec, data, group)
    return flat(scaled(codec, np.array(codec.centroids, np.float32)[codes], norm))


def pack(codec: Codec, norm: npt.NDArray[np.float16], codes: U8) -> U8:
    """norm [..., n, 1], codes [..., n, g] -> bytes [..., group_bytes(g) n]."""
    parts, shift = [norm.view(np.uint8)], 0
    for width in codec.fields:
        parts.append(_join(np.asarray(codes >> shift & _mask(width), np.uint8), width))
        shift += width
    return flat(np.concatenate(parts, axis=-1))


def unpack(codec: Codec, data: U8, group: int) -> tuple[npt.NDArray[np.float16], U8]:
    """Inverse of `pack`."""
    parts = split(data, codec.group_bytes(group))
    norm = np.ascontiguousarray(parts[..., :2]).view(np.float16)
    codes, at, shift = np.zeros((*parts.shape[:-1], group), np.uint8), 2, 0
    for width in codec.fields:
        end = at + -(-width * group // 8)
        codes |= _cut(parts[..., at:end], width)[..., :group] << shift
        at, shift = end, shift + width
    return norm, codes


def _mask(width: int) -> np.uint8:
    return np.uint8((1 << width) - 1)


def _join(values: U8, width: int) -> U8:
    """Fields of `width` bits (a divisor of 8) in whole bytes, the first value lowest."""
    per = 8 // width
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per)])
    places = (width * np.arange(per)).astype(np.uint8)
    return np.asarray(np.bitwise_or.reduce(split(padded, per) << places, axis=-1), np.uint8)


def _cut(data: U8, width: int) -> U8:
    """Inverse of `_join`, with what fills the last byte."""
    places = (width * np.arange(8 // width)).astype(np.uint8)
    return flat(np.asarray(data[..., None] >> places & _mask(width), np.uint8))
