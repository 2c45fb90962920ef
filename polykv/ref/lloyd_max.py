"""The rotated codec: rotate a vector, then store one Lloyd-Max index per value and one norm per group.

    n = |x|,  y = rotate(x / n),  i_j = number of thresholds <= y_j,  r = |c[i]|
    stored: i and fp16(n / r)            decoded: rotate^-1(c[i] * n / r)

After the rotation the values of any vector look like N(0, 1/128), so one table fits all. Dividing by r gives the
decoded vector exactly the length of x. Bytes of a group of g values: norm fp16, g/4 bytes with the low two bits of four
indices each, g/8 bytes with the high bit of eight indices each. Source: docs/FORMATS.md, the TurboQuant forks.

Exchange groups always hold 128 values, zero-padded. A vector of g = 16, 32 or 64 values repeats itself there up to
sign: the rotation gives y[j] = y[j % g] * s2[j] * s2[j % g]. So the resident layout keeps g codes and drops the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.ref.fwht import Floats, rotate
from polykv.ref.scalar import F16_MAX, flat, split
from polykv.types import F32, U8, Codec

# Longer values than this cannot be stored (the norm is fp16) but their squares would overflow the sum.
LARGEST = np.float32(1e18)
# Groups shorter than this count as zero.
SMALLEST = np.float32(1e-10)


def encode(codec: Codec, x: F32) -> U8:
    """x [..., 128 n] -> exchange bytes [..., 50 n]."""
    groups = split(np.clip(x, -LARGEST, LARGEST), codec.block)
    n = _length(groups)
    inverse = np.where(n > SMALLEST, 1 / np.maximum(n, SMALLEST), np.float32(0))
    y = rotate(groups * inverse, *signs(codec, codec.block))
    # side="right": a value on a threshold takes the upper index, so zero decodes to the smallest positive level.
    codes = np.searchsorted(np.array(codec.thresholds, np.float32), y, side="right").astype(np.uint8)
    r = _length(np.array(codec.centroids, np.float32)[codes])
    norm = np.minimum(n / r, np.float32(F16_MAX)).astype(np.float16)
    return pack(norm, codes)


def decode(codec: Codec, data: U8, group: int) -> F32:
    """Rotated values [..., group n] of bytes in groups of `group` (128 in the exchange layout)."""
    norm, codes = unpack(data, group)
    # Tables are in units of a unit-norm 128-vector.
    table = np.array(codec.centroids, np.float32) * np.float32(np.sqrt(codec.block / group))
    return flat(table[codes] * norm.astype(np.float32))


def rotate_in(codec: Codec, x: Floats, group: int) -> Any:
    """Zero-pad x [..., D] to whole groups and rotate: into the space in which codes are stored."""
    pad = -x.shape[-1] % group
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
    return rotate(padded, *signs(codec, group))


def rotate_out(codec: Codec, y: Floats, group: int, head_dim: int) -> Any:
    """Undo `rotate_in`. Lanes of the padding are not zero for decoded values: they are cut off."""
    return rotate(y, *signs(codec, group), inverse=True)[..., :head_dim]


def to_resident(codec: Codec, data: U8, group: int) -> U8:
    """Exchange bytes -> the same codes in groups of `group` values (a copy of the data when group is 128)."""
    norm, codes = unpack(data, codec.block)
    return pack(norm, codes[..., :group])


def to_exchange(codec: Codec, data: U8, group: int) -> U8:
    """Inverse of `to_resident`: regenerates the repeated codes of each group, mirrored where the signs differ."""
    norm, codes = unpack(data, group)
    s2 = np.array(codec.signs2)
    tiled = np.tile(codes, codec.block // group)
    mirror = s2 != np.tile(s2[:group], codec.block // group)
    top = (1 << codec.bits) - 1
    codes128 = np.where(mirror, top - tiled, tiled).astype(np.uint8)
    # A zero vector has no signs to mirror: all its values sat on the middle threshold and took the upper index. No
    # other vector has that index everywhere, since one of its values is at least the root mean square.
    middle = (top + 1) // 2
    codes128[(codes == middle).all(axis=-1)] = middle
    return pack(norm, codes128)


def pack(norm: npt.NDArray[np.float16], codes: U8) -> U8:
    """norm [..., n, 1], codes [..., n, g] -> bytes [..., n (2 + 3 g / 8)]."""
    quads = split(codes & 3, 4)
    low = quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6
    high = np.packbits(codes >> 2, axis=-1, bitorder="little")
    return flat(np.concatenate([norm.view(np.uint8), low, high], axis=-1))


def unpack(data: U8, group: int) -> tuple[npt.NDArray[np.float16], U8]:
    """Inverse of `pack`."""
    parts = split(data, group_bytes(group))
    norm = np.ascontiguousarray(parts[..., :2]).view(np.float16)
    low = parts[..., 2 : 2 + group // 4, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
    high = np.unpackbits(parts[..., 2 + group // 4 :], axis=-1, bitorder="little")
    return norm, np.asarray(low.reshape(high.shape) | high << 2, np.uint8)


def group_bytes(group: int) -> int:
    """Bytes of one group: norm, two-bit plane, one-bit plane."""
    return 2 + group // 4 + group // 8


def signs(codec: Codec, group: int) -> tuple[F32, F32]:
    """The first `group` signs of both vectors."""
    return np.array(codec.signs1[:group], np.float32), np.array(codec.signs2[:group], np.float32)


def _length(x: F32) -> F32:
    # Summed one after the other in float32, as the format's own encoder does: the bytes depend on it.
    return np.sqrt(np.add.accumulate(x * x, axis=-1)[..., -1:])
