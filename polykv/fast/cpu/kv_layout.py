"""The resident layout: where the codes of a block lie, and the constants that kernels read.

A block of one kv head is one record of bytes, codes first, then the float16 scales, so that a kernel meets one array
per side whatever the codec. B tokens of D' stored values (D' = head_dim in whole groups, see `Codec.group`):

    F32, F16    values  [D', B]            dims-major: all tokens of dim 0, then of dim 1
    Q8_0        int8    [D', B]            scales [D'/32, B]
    Q4_0        bytes   [D'/32, 16, B]     low nibble = dim j of 32, high nibble = dim j + 16; scales [D'/32, B]
    LLOYD_MAX   bits    [B, 3 D'/8 bytes]  token-major 3-bit stream, first value lowest; scales [D'/group, B]

The K side is read with lanes along tokens, the V side with lanes along dims. Types that are usual for K are dims-major
and those usual for V token-major, which makes the usual pairs free of transposes; the others transpose while lifting.
Three bits as a plain stream because 8 codes are then 3 bytes: one load, one variable shift and one table permute
yield 8 values without a mask. The scales behind the codes also absorb the read past the last code. Groups are whole
octets of codes and whole panels of 16 dims, because head_dim is a multiple of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from polykv.errors import UnsupportedError
from polykv.hadamard import core, core_order
from polykv.types import F32, Codec, Family, KVArena

I64 = npt.NDArray[np.int64]

# Tokens that kernels take at a time; blocks are whole pieces.
PIECE = 8
# Entries of `geom`. CORE: order of the Paley factor of the group's Hadamard matrix.
FAMILY, DIM, STORED, GROUP, BLOCK, SCALE_AT, RECORD, GROUP_BYTES, CORE, GEOM = range(10)
# The longest rotation group that is not made of blocks of 128, and the largest core of a group's matrix
# (polykv/hadamard.py). Numbers of this file, because kernels contain them and are kept under a hash of their sources.
LONGEST, WIDEST = 576, 36
# Offsets in `table`: 16 centroids (the 8 twice, so that a 4-bit lane index needs no mask), thresholds, rotation signs,
# and Paley's matrix twice: P transposed, by whose rows the product P y is summed, and P, for P^T y.
CENTROIDS, THRESHOLDS, SIGNS1, SIGNS2 = 0, 16, 32, 32 + LONGEST
FORWARD = SIGNS2 + LONGEST
BACKWARD = FORWARD + WIDEST**2
TABLE = BACKWARD + WIDEST**2
# The types that there are kernels for.
FAMILIES = (Family.F32, Family.F16, Family.Q8_0, Family.Q4_0, Family.LLOYD_MAX)
TYPES = "f32, f16, q8_0, q4_0 and turbo3"


@dataclass(frozen=True, eq=False)
class CpuArena(KVArena):
    """A KVArena with its layout in the form that kernels read; its one field is `data`, uint8 [N, n_kv, RECORD]."""

    geom: I64
    table: F32


def codec_limit(codec: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why there are no kernels for a codec at this head_dim and block size."""
    if head_dim < 16 or head_dim % 16:
        return "kernels need a head_dim that is a multiple of 16"
    if block_size < PIECE or block_size % PIECE:
        return f"kernels need a block size that is a multiple of {PIECE}"
    if codec.family not in FAMILIES or (codec.rotated and codec.bits != 3):
        return f"there are kernels for {TYPES} only"
    if codec.alpha != 1:
        return f"kernels store norms as they are, without a factor of {codec.alpha:g}"
    return None


@lru_cache(maxsize=64)
def layout(codec: Codec, head_dim: int, block_size: int) -> tuple[I64, F32]:
    """`geom` int64 [GEOM] and `table` float32 [TABLE] of a codec at one head_dim and block size.

    Raises UnsupportedError for what `codec_limit` names; `polykv.load` asks before it allocates anything.
    """
    return _layout(codec, head_dim, block_size, codec.group(head_dim), codec.resident_dim(head_dim))


@lru_cache(maxsize=64)
def exchange_layout(codec: Codec, head_dim: int) -> tuple[I64, F32]:
    """The same for vectors in the groups of the exchange layout, which are stored nowhere. Raises UnsupportedError."""
    return _layout(codec, head_dim, PIECE, codec.block, codec.padded(head_dim))


def _layout(codec: Codec, head_dim: int, block_size: int, group: int, stored: int) -> tuple[I64, F32]:
    reason = codec_limit(codec, head_dim, block_size)
    if reason is not None:
        raise UnsupportedError(f"the backend cpu cannot store head_dim {head_dim} in blocks of {block_size}: {reason}")
    scale_at = block_size * stored * codec.bits // 8
    scales = 0 if group == 1 else stored // group * block_size * 2
    # Nothing is read past a record: loads cover pieces of 8 tokens, and the last code has scales behind it.
    record = -(-(scale_at + scales) // 16) * 16
    m = core_order(group) if codec.rotated else 1
    geom = [codec.family, head_dim, stored, group, block_size, scale_at, record, codec.group_bytes(group), m]
    table = np.zeros(TABLE, np.float32)
    if codec.rotated:
        table[CENTROIDS : CENTROIDS + 16] = np.tile(np.asarray(codec.centroids, np.float32), 2) * np.sqrt(
            np.float32(codec.block / group)
        )
        table[THRESHOLDS : THRESHOLDS + 7] = codec.thresholds
        table[SIGNS1 : SIGNS1 + group], table[SIGNS2 : SIGNS2 + group] = codec.signs(group)
        table[FORWARD : FORWARD + m * m] = core(m).T.reshape(-1)
        table[BACKWARD : BACKWARD + m * m] = core(m).reshape(-1)
    return np.array(geom, np.int64), table
