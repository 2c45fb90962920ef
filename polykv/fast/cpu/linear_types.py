"""What the weight kernels must know of each storage type: a small table of integers, `code`, whose address they take.

PRODUCT   address of the kernel for a range of weight rows (`linear_product`)
UNPACK    address of the kernel that unpacks 8 weight rows (`linear_unpack`, `linear_unpack_k`, `linear_plain`)
FLAGS     HALVES   scales belong to 16 columns, not 32
          MINIMUM  y = a * q + b, else y = a * (q - zero)
          WIDE     codes need 8 bits; they are stored plus BIAS
          PLAIN    floats: no codes
ZERO      the stored code that means zero
VALUES    columns of a storage block, and BYTES of it
INTEGERS  1 when the product reads int8 activations
TILE      address of the kernel that multiplies unpacked codes (`linear_q8`), 0 for floats
FEW       address of the kernel for few rows of activations (`linear_few`), 0 for types that have none
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import get_i64
from polykv.fast.cpu.simd_weights import BIAS
from polykv.types import WeightType

PRODUCT, UNPACK, FLAGS, ZERO, VALUES, BYTES, INTEGERS, TILE, FEW, SLOTS = range(10)
HALVES, MINIMUM, WIDE, PLAIN = 1, 2, 4, 8

# (flags, zero code) of every type.
TRAITS: dict[WeightType, tuple[int, int]] = {
    WeightType.F32: (PLAIN, 0),
    WeightType.F16: (PLAIN, 0),
    WeightType.BF16: (PLAIN, 0),
    WeightType.Q4_0: (0, 8),
    WeightType.Q4_1: (MINIMUM, 0),
    WeightType.Q5_0: (0, 16),
    WeightType.Q5_1: (MINIMUM, 0),
    WeightType.Q8_0: (WIDE, BIAS),
    WeightType.Q2_K: (HALVES | MINIMUM, 0),
    WeightType.Q3_K: (HALVES, 4),
    WeightType.Q4_K: (MINIMUM, 0),
    WeightType.Q5_K: (MINIMUM, 0),
    WeightType.Q6_K: (HALVES, 32),
    WeightType.IQ4_NL: (WIDE, BIAS),
    WeightType.IQ4_XS: (WIDE, BIAS),
}

# Layout of unpacked weights, see `linear_unpack`: 8 rows of 32 columns take PANEL_BLOCK bytes.
PANEL_A, PANEL_B, PANEL_BLOCK = 256, 320, 384


@kernel()
def slot(code: int, index: int) -> Any:
    """One entry of the table."""
    return get_i64(code + 8 * index)


@kernel()
def packed_bytes(code: int, columns: int) -> Any:
    """Bytes of `columns` columns of one row; columns is a multiple of the block."""
    return columns // slot(code, VALUES) * slot(code, BYTES)


@kernel()
def takes_q8(code: int) -> Any:
    """Whether the product reads int8 activations."""
    return slot(code, INTEGERS) != 0
