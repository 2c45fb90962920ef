"""quantize, dequantize: the K/V types as a library of their own.

Both work on the exchange layout (docs/FORMATS.md): the bytes that other programs write. A vector of head_dim values is
zero-padded to whole blocks of the type, so the byte count follows from both.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.cache.codecs import codec
from polykv.errors import ConfigError
from polykv.ops import load
from polykv.types import F32, U8, Codec, Family

# The largest values of the plain types, and the largest scale of the others.
LARGEST = {Family.F32: float("inf"), Family.BF16: 2.0**128 - 2.0**120, Family.F16: 65504.0}
# Types with a minimum of 16 bits behind their scale.
RANGED = (Family.Q5_1, Family.Q4_1)


def quantize(tier: str, x: npt.ArrayLike, backend: str = "ref") -> U8:
    """Exchange blocks, uint8 [..., n], of vectors x [..., head_dim].

    tier: one K/V type (`polykv tiers` lists them). x: finite floats, converted to float32; values beyond what the
    type's fp16 scale can hold are clamped, and a UserWarning says of how many vectors. backend: "ref" (all types) or
    "cpu".

    >>> quantize("q8_0", np.ones((2, 64), np.float32)).shape
    (2, 68)

    Raises ConfigError for an unknown type or backend, and for x that is not a finite float array with a last axis;
    UnsupportedError for a type or head_dim that the backend has no kernels for.
    """
    kind = _exchanged(tier)
    a = _array("quantize: x", x)
    if not np.issubdtype(a.dtype, np.floating):
        raise ConfigError(f"quantize: x has dtype {a.dtype}; give it float values")
    if a.ndim == 0 or a.shape[-1] == 0:
        raise ConfigError(f"quantize: x has shape {list(a.shape)}; its last axis must hold the values of one vector")
    # A float64 beyond float32's range becomes infinite here and is refused in the next line.
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(a, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise ConfigError("quantize: x holds values that are not finite in float32; no K/V type can store them")
    ops = load(backend)
    blocks = ops.fetch(ops.encode(kind, vectors))
    at_limit = int(_at_limit(kind, vectors, blocks).sum())
    if at_limit:
        warnings.warn(
            f"quantize: {at_limit} of {blocks[..., 0].size} vectors reach the limit of what {tier} can hold; values"
            " beyond it were clamped",
            stacklevel=2,
        )
    return blocks


def dequantize(tier: str, blocks: npt.ArrayLike, head_dim: int, backend: str = "ref") -> F32:
    """Vectors, float32 [..., head_dim], of exchange blocks uint8 [..., n].

    >>> x = np.linspace(-1, 1, 64, dtype=np.float32)
    >>> bool(np.abs(dequantize("q8_0", quantize("q8_0", x), 64) - x).max() < 0.005)
    True

    Raises ConfigError for an unknown type or backend, and for blocks whose dtype or length does not fit;
    UnsupportedError for a type or head_dim that the backend has no kernels for.
    """
    kind = _exchanged(tier)
    data = _array("dequantize: blocks", blocks)
    if data.dtype != np.uint8:
        raise ConfigError(f"dequantize: blocks have dtype {data.dtype}; exchange blocks are uint8")
    if not isinstance(head_dim, int | np.integer) or head_dim < 1:
        raise ConfigError(f"dequantize: head_dim is {head_dim!r}; it must be a positive integer")
    want = kind.exchange_bytes(int(head_dim))
    have = data.shape[-1] if data.ndim else 0
    if have != want:
        raise ConfigError(
            f"dequantize: blocks have {have} bytes per vector; {tier} stores head_dim {head_dim} in {want}"
        )
    ops = load(backend)
    return ops.fetch(ops.decode(kind, np.ascontiguousarray(data), int(head_dim)))


def _at_limit(kind: Codec, vectors: F32, blocks: U8) -> npt.NDArray[np.bool_]:
    """Which vectors have a value, or a scale, that the type could not hold if it were larger."""
    if kind.family in LARGEST:
        return np.asarray((np.abs(vectors) > LARGEST[kind.family]).any(axis=-1))
    split = blocks.reshape(*blocks.shape[:-1], blocks.shape[-1] // kind.block_bytes, kind.block_bytes)
    scales = np.ascontiguousarray(split[..., : 4 if kind.family in RANGED else 2]).view("<f2")
    return np.asarray((np.abs(scales.astype(np.float32)) == LARGEST[Family.F16]).any(axis=(-1, -2)))


def _array(name: str, x: npt.ArrayLike) -> npt.NDArray[Any]:
    """x as an array, unless its rows differ in length."""
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{name}: cannot be made an array: {e}") from None


def _exchanged(tier: str) -> Codec:
    """The codec, if its vectors can be stored one by one."""
    if not isinstance(tier, str):
        raise ConfigError(f"unknown K/V type {tier!r}; a type is a string such as q8_0")
    kind = codec(tier)
    if kind.centered:
        raise ConfigError(f"{tier} exists in caches only: it codes vectors less the mean of their unit of 64 positions")
    return kind
