"""What all rotated codecs do around their codes: groups of one length, of unit norm, rotated; and the stored norm.

    n = |x|,  y = rotate(x / n)          then codes of y stand for a vector c, and fp16(alpha n / |c|) is stored

After the rotation the values of any vector look like N(0, 1/g), so one table fits all. Dividing by |c| gives the
decoded vector exactly the length of x. Tables are in units of a unit-norm vector of 128, so y is multiplied by sqrt(g /
128) before codes are chosen and a decoded value by sqrt(128 / g). Source: docs/FORMATS.md, the TurboQuant forks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.ref.blocks import split
from polykv.ref.fwht import Floats, rotate
from polykv.ref.scalar import F16_MAX
from polykv.types import F32, Codec

# Longer values than this cannot be stored (the norm is fp16) but their squares would overflow the sum.
LARGEST = np.float32(1e17)
# Groups shorter than this count as zero.
SMALLEST = np.float32(1e-10)
# float32 [..., g] -> [..., 1]; formats differ in the order of the sum, and bytes depend on it.
Length = Callable[[F32], F32]


def normalised(codec: Codec, x: F32, group: int, length: Length) -> tuple[F32, F32]:
    """Rotated unit vectors [..., n, group] in the units of the tables, and their lengths [..., n, 1]."""
    groups = split(np.clip(x, -LARGEST, LARGEST), group)
    n = length(groups)
    inverse = np.where(n > SMALLEST, 1 / np.maximum(n, SMALLEST), np.float32(0))
    return rotate(groups * inverse, *codec.signs(group), length=codec.block), n


def stored_norm(codec: Codec, n: F32, c: F32, length: Length) -> npt.NDArray[np.float16]:
    """fp16 norms [..., 1] of groups of length n whose codes decode to c [..., g] (in the units of the tables)."""
    scale = np.sqrt(np.float32(codec.block / c.shape[-1]))
    r = length(c * scale)
    norm = np.where(r > SMALLEST, n / np.maximum(r, SMALLEST), n) * np.float32(codec.alpha)
    return np.minimum(norm, np.float32(F16_MAX)).astype(np.float16)


def scaled(codec: Codec, values: F32, norm: npt.NDArray[np.float16]) -> F32:
    """Rotated values of a group: table entries [..., g] times the norm, in the vector's own units."""
    scale = np.sqrt(np.float32(codec.block / values.shape[-1]))
    return np.asarray(values * scale * norm.astype(np.float32), np.float32)


def rotate_in(codec: Codec, x: Floats, group: int) -> Any:
    """Zero-pad x [..., D] to whole groups and rotate: into the space in which codes are stored."""
    pad = -x.shape[-1] % group
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
    return rotate(padded, *codec.signs(group))


def rotate_out(codec: Codec, y: Floats, group: int, head_dim: int) -> Any:
    """Undo `rotate_in`. Lanes of the padding are not zero for decoded values: they are cut off."""
    return rotate(y, *codec.signs(group), inverse=True)[..., :head_dim]


def sequential(x: F32) -> F32:
    """|x|, squares added one after the other."""
    return np.sqrt(np.add.accumulate(x * x, axis=-1)[..., -1:])


def pairwise(x: F32) -> F32:
    """|x|, squares added as a tree: first value j and j + n/2, then j and j + n/4, ... (zeros up to a power of two)."""
    squares = x * x
    n = 1 << (x.shape[-1] - 1).bit_length()
    squares = np.pad(squares, [(0, 0)] * (x.ndim - 1) + [(0, n - x.shape[-1])])
    while n > 1:
        n //= 2
        squares = squares[..., :n] + squares[..., n : 2 * n]
    return np.asarray(np.sqrt(squares), np.float32)
