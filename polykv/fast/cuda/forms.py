"""What the kernels of kv.cu are told about a codec at a head_dim: sizes, and constants on the device.

form = form_of(codec("turbo3"), 128, Use.K)
launch(kernel("kv.cu", "kv_read", KV_TYPE=form.type), ..., (*form.tables, ...), shared=form.shared)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.errors import UnsupportedError
from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.layout import BLOCK, codec_limit, kind_of, slices_of
from polykv.fast.cuda.levels import IQ4_NL
from polykv.fast.cuda.source import Define
from polykv.hadamard import core, core_order
from polykv.types import F32, Codec, Family

# Vectors, one a warp, that a block of threads works on.
WARPS = 4
# The search for a path keeps two rows of costs, of 64 floats, and a byte a step for every lane (kv_trellis.cuh).
SEARCH, LANES = 512, 32


class Use(IntEnum):
    """Where codes lie: in tiles in the order of K or of V, or in the exchange layout."""

    K = 0
    V = 1
    EXCHANGE = 2


@dataclass(frozen=True, eq=False)
class Form:
    """A codec at a head_dim. type: what kernels call it. vector_bytes: of a vector in files. shared: bytes of shared
    memory of a block of WARPS vectors. tables: sizes, signs, core and numbers on the device, as kernels take them;
    sizes: the first of them, for programs that are compiled for these alone."""

    type: str
    sizes: tuple[int, ...]
    vector_bytes: int
    shared: int
    tables: tuple[Any, Any, Any, Any]


# Names of the sizes, in the order of struct Form in kernels/kv_form.cuh.
SIZES = (
    *("DIM", "STORED", "RESIDENT", "GROUP", "TURN", "CORE", "WIDTH", "SLICES", "VALUES", "SLICE_BYTES"),
    *("GROUP_BYTES", "CODES_AT", "VECTOR_BYTES", "ROOM", "SPARE"),
)


def size_defines(side: str, sizes: Sequence[int]) -> dict[str, Define]:
    """The sizes as defines SIDE_DIM, SIDE_STORED, ..."""
    return {f"{side}_{name}": int(size) for name, size in zip(SIZES, sizes, strict=True)}


def form_of(codec: Codec, head_dim: int, use: Use) -> Form:
    """The form, made once for every device.

    Raises UnsupportedError for a codec that has no kernels at this head_dim, with the words of `codec_limit`.
    """
    reason = codec_limit(codec, head_dim, BLOCK)
    if reason is not None:
        raise UnsupportedError(reason)
    return _form(codec, head_dim, use, cupy().cuda.runtime.getDevice())


@lru_cache(maxsize=256)
def _form(codec: Codec, head_dim: int, use: Use, device: int) -> Form:
    sizes, signs, cores, found = host_form(codec, head_dim, use)
    shared = WARPS * (vector_room(int(sizes[-2])) + int(sizes[-1]))
    tables = tuple(asarray(a) if a.size else None for a in (sizes, signs, cores, found))
    return Form(kind_of(codec).name.upper(), tuple(sizes.tolist()), int(sizes[-3]), shared, tables)  # type: ignore[arg-type]


def vector_room(room: int) -> int:
    """Bytes of shared memory that a warp takes for a vector of up to so many values (kernels/kv_form.cuh)."""
    return 336 * (room // 32)


def host_form(codec: Codec, head_dim: int, use: Use) -> tuple[npt.NDArray[np.int32], F32, npt.NDArray[np.int8], F32]:
    """Arrays that stand for the structs Form and Tables of kernels/kv_form.cuh: sizes; signs, core and numbers."""
    exchange = use == Use.EXCHANGE
    group = codec.block if exchange else codec.group(head_dim)
    stored = codec.padded(head_dim) if exchange and codec.unit_norm else codec.stored_dim(head_dim)
    resident = codec.padded(head_dim) if exchange else codec.resident_dim(head_dim)
    turn = (group if codec.unit_norm else codec.turn(head_dim)) if codec.rotated else 0
    m, (width, slices) = core_order(turn), slices_of(head_dim)
    group_bytes = codec.block_bytes if exchange else codec.group_bytes(group)
    reserved = group_bytes - codec.group_bytes(group) if exchange else 0
    # What is reserved lies before the codes; behind the stream of a trellis type.
    halves = 2 if kind_of(codec).minima else 0 if codec.block == 1 else 1
    codes_at = 2 * halves + (0 if codec.family == Family.TRELLIS else reserved)
    vector_bytes = resident // group * group_bytes
    # A norm has a sum in float64 of every lane (kernels/kv_prepare.cuh).
    room = max(-(-max(resident, width * slices) // 32) * 32, 2 * LANES)
    sizes = [head_dim, stored, resident, group, turn, m, width, slices, int(use == Use.V)]
    spare = SEARCH + LANES * group if codec.family == Family.TRELLIS else 0
    sizes += [kind_of(codec).slice_bytes(width), group_bytes, codes_at, vector_bytes, room, spare]
    signs = np.concatenate(codec.signs(turn)) if turn else np.zeros(0)
    cores = np.stack([core(m), core(m).T]) if m > 1 else np.zeros(0)
    return np.array(sizes, np.int32), signs.astype(np.float32), cores.astype(np.int8), _numbers(codec, group, turn)


def _numbers(codec: Codec, group: int, turn: int) -> F32:
    """Factors of the rotation and of levels, then thresholds, if any, and levels."""
    decode = 1 / np.sqrt(turn) if turn else 0
    # Levels and thresholds are those of a unit vector of 128 values.
    encode = 1 / np.sqrt(codec.block) if codec.unit_norm else decode
    unit = np.sqrt(np.float32(codec.block / group))
    levels = IQ4_NL if codec.family == Family.IQ4_NL else codec.centroids
    return np.array([encode, decode, unit, codec.alpha, *codec.thresholds, *levels], np.float32)
