"""The table of a weight type that kernels take (`linear_types`), built when the type is first met."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cpu import linear_few, linear_plain, linear_planes, linear_q8, linear_unpack, linear_unpack_k
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.linear_product import product_f32, product_q8
from polykv.fast.cpu.linear_types import PLAIN, SLOTS, TRAITS
from polykv.types import WEIGHT_BLOCK, Activations, MatrixType, Resident, WeightType

UNPACKERS: dict[MatrixType, Any] = {
    WeightType.F32: linear_plain.plain_f32,
    WeightType.F16: linear_plain.plain_f16,
    WeightType.BF16: linear_plain.plain_bf16,
    WeightType.Q4_0: linear_unpack.q4_0,
    WeightType.Q4_1: linear_unpack.q4_1,
    WeightType.Q5_0: linear_unpack.q5_0,
    WeightType.Q5_1: linear_unpack.q5_1,
    WeightType.Q8_0: linear_unpack.q8_0,
    WeightType.Q2_K: linear_unpack_k.q2_k,
    WeightType.Q3_K: linear_unpack_k.q3_k,
    WeightType.Q4_K: linear_unpack_k.q4_k,
    WeightType.Q5_K: linear_unpack_k.q5_k,
    WeightType.Q6_K: linear_unpack_k.q6_k,
    WeightType.IQ4_NL: linear_unpack.iq4_nl,
    WeightType.IQ4_XS: linear_unpack_k.iq4_xs,
    Resident.Q8_0_PLANES: linear_planes.q8_0_planes,
}

TILES: dict[MatrixType, Any] = {
    WeightType.Q4_0: linear_q8.tile_4,
    WeightType.Q4_1: linear_q8.tile_4_minimum,
    WeightType.Q5_0: linear_q8.tile_5,
    WeightType.Q5_1: linear_q8.tile_5_minimum,
    WeightType.Q8_0: linear_q8.tile_8,
    WeightType.Q2_K: linear_q8.tile_half_4_minimum,
    WeightType.Q3_K: linear_q8.tile_half_4,
    WeightType.Q4_K: linear_q8.tile_4_minimum,
    WeightType.Q5_K: linear_q8.tile_5_minimum,
    WeightType.Q6_K: linear_q8.tile_half_6,
    WeightType.IQ4_NL: linear_q8.tile_8,
    WeightType.IQ4_XS: linear_q8.tile_8,
    Resident.Q8_0_PLANES: linear_q8.tile_8,
}

FEW_ROWS: dict[MatrixType, Any] = {
    WeightType.Q4_0: linear_few.few_q4_0,
    WeightType.Q4_1: linear_few.few_q4_1,
    WeightType.Q5_0: linear_few.few_q5_0,
    WeightType.Q5_1: linear_few.few_q5_1,
    WeightType.Q8_0: linear_few.few_q8_0,
    WeightType.IQ4_NL: linear_few.few_iq4_nl,
    Resident.Q8_0_PLANES: linear_planes.few_planes,
}


@cache
def code(kind: MatrixType, activations: Activations) -> int:
    """Address of the table. It lives as long as the process."""
    return int(_table(kind, activations).ctypes.data)


@cache
def _table(kind: MatrixType, activations: Activations) -> npt.NDArray[np.int64]:
    flags, zero = TRAITS[kind]
    values, size = WEIGHT_BLOCK[kind]
    integers = activations == Activations.Q8 and not flags & PLAIN
    product = entry(product_q8 if integers else product_f32, 14)
    tile = entry(TILES[kind], 9) if integers else 0
    few = entry(FEW_ROWS[kind], 9) if integers and kind in FEW_ROWS else 0
    table = np.zeros(SLOTS, np.int64)
    table[:] = (product, entry(UNPACKERS[kind], 4), flags, zero, values, size, integers, tile, few)
    return table
