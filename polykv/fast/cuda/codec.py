"""encode, decode: vectors to exchange bytes and back (twin of `polykv.ref.codec`)."""

from __future__ import annotations

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.forms import WARPS, Use, form_of
from polykv.types import F32, U8, Codec


def encode(codec: Codec, x: F32, *, out: U8 | None = None) -> U8:
    """Exchange layout [..., exchange_bytes(D)] of vectors x [..., D]."""
    *shape, dim = check("x", x, np.float32).shape
    f, n = form_of(codec, dim, Use.EXCHANGE), int(np.prod(shape))
    data: U8 = output(out, (*shape, f.vector_bytes), np.uint8)
    made = kernel("kv.cu", "kv_encode", KV_TYPE=f.type)
    launch(made, (-(-n // WARPS),), (32 * WARPS,), (data, *f.tables, x, n), shared=f.shared)
    return data


def decode(codec: Codec, blocks: U8, head_dim: int, *, out: F32 | None = None) -> F32:
    """Vectors [..., head_dim] in true (unrotated) space of exchange blocks [..., exchange_bytes(D)]."""
    f = form_of(codec, head_dim, Use.EXCHANGE)
    *shape, size = check("blocks", blocks, np.uint8).shape
    if size != f.vector_bytes:
        raise ValueError(f"vectors of {head_dim} values take {f.vector_bytes} bytes as {codec.name}, not {size}")
    y: F32 = output(out, (*shape, head_dim))
    n = int(np.prod(shape))
    made = kernel("kv.cu", "kv_decode", KV_TYPE=f.type)
    launch(made, (-(-n // WARPS),), (32 * WARPS,), (y, *f.tables, blocks, n), shared=f.shared)
    return y
