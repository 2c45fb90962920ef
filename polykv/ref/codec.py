"""encode, decode: vectors to exchange bytes and back.

A vector of head_dim values is zero-padded to whole blocks of the codec, then stored block after block. This layout is
what files hold and what other programs write (docs/FORMATS.md); how a backend keeps codes in memory is its own affair.
"""

from __future__ import annotations

import numpy as np

from polykv.ref import lloyd_max, scalar
from polykv.ref.weights import give
from polykv.types import F32, U8, Codec, Family


def encode(codec: Codec, x: F32, *, out: U8 | None = None) -> U8:
    """Exchange layout [..., exchange_bytes(D)] of vectors x [..., D]."""
    pad = codec.padded(x.shape[-1]) - x.shape[-1]
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
    if codec.family == Family.F32:
        data = x.astype("<f4").view(np.uint8)
    elif codec.family == Family.F16:
        data = np.clip(x, -scalar.F16_MAX, scalar.F16_MAX).astype("<f2").view(np.uint8)
    elif codec.family == Family.Q8_0:
        data = scalar.encode_q8_0(x)
    elif codec.family == Family.Q4_0:
        data = scalar.encode_q4_0(x)
    else:
        data = lloyd_max.encode(codec, x)
    if out is None:
        return data
    out[...] = data
    return out


def decode(codec: Codec, blocks: U8, head_dim: int, *, out: F32 | None = None) -> F32:
    """Vectors [..., head_dim] in true (unrotated) space of exchange blocks [..., exchange_bytes(D)]."""
    y = decode_stored(codec, blocks, head_dim, codec.block)
    if codec.rotated:
        y = lloyd_max.rotate_out(codec, y, codec.block, head_dim)
    return give(y, out)


def decode_stored(codec: Codec, data: U8, head_dim: int, group: int) -> F32:
    """Values as they are stored: [..., head_dim], or whole rotated groups for a rotated codec."""
    data = np.ascontiguousarray(data)
    if codec.family == Family.F32:
        return data.view("<f4")[..., :head_dim].astype(np.float32)
    if codec.family == Family.F16:
        return data.view("<f2")[..., :head_dim].astype(np.float32)
    if codec.family == Family.Q8_0:
        return scalar.decode_q8_0(data)[..., :head_dim]
    if codec.family == Family.Q4_0:
        return scalar.decode_q4_0(data)[..., :head_dim]
    return lloyd_max.decode(codec, data, group)
