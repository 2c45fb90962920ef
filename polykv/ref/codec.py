"""encode, decode: vectors to exchange bytes and back; and the same for the packed bytes of memory and pool files.

A vector of head_dim values is zero-padded to whole groups of the codec, then stored group after group. The exchange
layout is what other programs write. The packed layout differs from it for rotated codecs: groups have the size of the
head where there is a Hadamard matrix of that order, and there are no reserved bytes (docs/FORMATS.md).
"""

from __future__ import annotations

import numpy as np

from polykv.ref import lloyd_max, plain, rotation, scalar, trellis
from polykv.ref.blocks import flat, split
from polykv.ref.weights import give
from polykv.results import result
from polykv.types import F32, U8, Codec, Family


def encode(codec: Codec, x: F32, *, out: U8 | None = None) -> U8:
    """Exchange layout [..., exchange_bytes(D)] of vectors x [..., D]."""
    data = _with_reserved(codec, encode_groups(codec, x, codec.block))
    if out is None:
        return data
    result(out, data.shape)[...] = data
    return out


def decode(codec: Codec, blocks: U8, head_dim: int, *, out: F32 | None = None) -> F32:
    """Vectors [..., head_dim] in true (unrotated) space of exchange blocks [..., exchange_bytes(D)]."""
    y = decode_groups(codec, without_reserved(codec, blocks), head_dim, codec.block)
    if codec.rotated:
        turn = codec.block if codec.unit_norm else codec.turn(head_dim)
        y = rotation.rotate_out(codec, y, turn, head_dim)
    return give(y, out)


def encode_groups(codec: Codec, x: F32, group: int) -> U8:
    """Packed bytes of vectors x [..., D] in groups of `group` values."""
    if codec.rotated and not codec.unit_norm:
        # Beyond what a scale can hold, but still far from the largest sum of float32.
        x = rotation.rotate_in(codec, np.clip(x, -rotation.LARGEST, rotation.LARGEST), codec.turn(x.shape[-1]))
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % group)])
    if codec.family == Family.LLOYD_MAX:
        return lloyd_max.encode(codec, x, group)
    if codec.family == Family.TRELLIS:
        return trellis.encode(codec, x, group)
    return plain.encode(codec, x) if group == 1 else scalar.encode(codec, x)


def decode_groups(codec: Codec, data: U8, head_dim: int, group: int) -> F32:
    """Values as they are stored, [..., stored_dim(head_dim)] (exchange groups of unit vectors: whole groups)."""
    data = np.ascontiguousarray(data)
    if codec.family == Family.LLOYD_MAX:
        return lloyd_max.decode(codec, data, group)
    if codec.family == Family.TRELLIS:
        return trellis.decode(codec, data, group)
    y = plain.decode(codec, data) if group == 1 else scalar.decode(codec, data)
    return y[..., : codec.stored_dim(head_dim)]


def without_reserved(codec: Codec, blocks: U8) -> U8:
    """Exchange blocks without the bytes that hold nothing: packed bytes in groups of `codec.block`."""
    extra, at = _reserved(codec)
    if not extra:
        return blocks
    parts = split(np.ascontiguousarray(blocks), codec.block_bytes)
    return flat(np.concatenate([parts[..., :at], parts[..., at + extra :]], axis=-1))


def _with_reserved(codec: Codec, data: U8) -> U8:
    extra, at = _reserved(codec)
    if not extra:
        return data
    parts = split(data, codec.group_bytes(codec.block))
    zeros = np.zeros((*parts.shape[:-1], extra), np.uint8)
    return flat(np.concatenate([parts[..., :at], zeros, parts[..., at:]], axis=-1))


def _reserved(codec: Codec) -> tuple[int, int]:
    """Reserved bytes of an exchange block and where they begin: after the norm (4 bits), or at the end (trellis)."""
    size = codec.group_bytes(codec.block)
    return codec.block_bytes - size, 2 if codec.family == Family.LLOYD_MAX else size
