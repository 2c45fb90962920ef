"""Dequantization of the two 4-bit types with a non-linear table.

    IQ4_NL    y = d * table[q]               32 values per fp16 scale
    IQ4_XS    y = d * (s - 32) * table[q]    256 values per fp16 scale, 8 sub-blocks of 32 with 6-bit s

Each function takes uint8 blocks [..., block_bytes] and gives float32 [..., block_values]. Source: the block structs of
ggml (docs/FORMATS.md).
"""

from __future__ import annotations

import numpy as np

from polykv.ref.quants_legacy import half
from polykv.types import F32, U8

TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def iq4_nl(blocks: U8) -> F32:
    """d @0, nibbles [16] @2 (values j and j + 16)."""
    return half(blocks, 0) * _lookup(blocks[..., 2:18])


def iq4_xs(blocks: U8) -> F32:
    """d @0, upper scale bits uint16 @2, lower scale nibbles [4] @4, nibbles [128] @8."""
    shifts = np.arange(8, dtype=np.uint16)
    high = (np.ascontiguousarray(blocks[..., 2:4]).view("<u2") >> (2 * shifts)) & 3
    low = np.repeat(blocks[..., 4:8], 2, axis=-1) >> (4 * (shifts & 1)) & 15
    s = half(blocks, 0) * ((low | (high << 4)).astype(np.float32) - 32)
    values = _lookup(blocks[..., 8:136].reshape(*blocks.shape[:-1], 8, 16))
    return (s[..., None] * values).reshape(*blocks.shape[:-1], 256)


def _lookup(qs: U8) -> F32:
    return np.concatenate([TABLE[qs & 15], TABLE[qs >> 4]], axis=-1)
