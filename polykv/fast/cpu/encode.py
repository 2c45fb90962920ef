"""Vectors <-> exchange layout (twin of `polykv.ref.codec`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_pack import load_bytes, store_bytes
from polykv.fast.cpu.encode_row import decode_row, encode_row
from polykv.fast.cpu.kv_layout import DIM, STORED, exchange_layout
from polykv.types import F32, U8, Codec


@kernel()
def _encode(x: Any, geom: Any, table: Any, out: Any) -> None:
    y = np.empty(geom[STORED], np.float32)
    codes = np.empty(geom[STORED], np.uint32)
    scales = np.empty(geom[STORED], np.uint16)
    for r in range(x.shape[0]):
        encode_row(x[r], geom, table, y, codes, scales)
        store_bytes(codes, scales, geom, out[r])


@kernel()
def _decode(blocks: Any, geom: Any, table: Any, out: Any) -> None:
    y = np.empty(geom[STORED], np.float32)
    codes = np.empty(geom[STORED], np.uint32)
    scales = np.empty(geom[STORED], np.uint16)
    for r in range(blocks.shape[0]):
        load_bytes(blocks[r], geom, codes, scales)
        decode_row(codes, scales, geom, table, y)
        out[r] = y[: geom[DIM]]


def encode(codec: Codec, x: F32, *, out: U8 | None = None) -> U8:
    """Exchange layout uint8 [..., exchange_bytes(D)] of vectors x [..., D]; scales never become infinite."""
    d = x.shape[-1]
    n = codec.exchange_bytes(d)
    out = np.empty((*x.shape[:-1], n), np.uint8) if out is None else out
    geom, table = exchange_layout(codec, d)
    _encode(np.ascontiguousarray(x, np.float32).reshape(-1, d), geom, table, out.reshape(-1, n))
    return out


def decode(codec: Codec, blocks: U8, head_dim: int, *, out: F32 | None = None) -> F32:
    """True-space vectors [..., head_dim] of exchange blocks [..., exchange_bytes(head_dim)]."""
    out = np.empty((*blocks.shape[:-1], head_dim), np.float32) if out is None else out
    geom, table = exchange_layout(codec, head_dim)
    _decode(np.ascontiguousarray(blocks).reshape(-1, blocks.shape[-1]), geom, table, out.reshape(-1, head_dim))
    return out
