"""What the weight kernels must know of each storage type: a small table of integers, `code`, whose address they take.

PRODUCT   address of the kernel for a range of weight rows (`linear_product`)
UNPACK    address of the kernel that unpacks 8 weight rows (`linear_unpack`, `linear_unpack_k`, `linear_plain`)
FLAGS     HALVES   scales belong to 16 columns, not 32
          MINIMUM  y = a * q + b, else y = a * (q - zero)
          WIDE     codes need 8 bits; they are stored plus BIAS
          PLAIN    floats: no codes
          PLANES   codes lie in two planes (`linear_planes`)
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
from polykv.types import MatrixType, Resident, WeightType

PRODUCT, UNPACK, FLAGS, ZERO, VALUES, BYTES, INTEGERS, TILE, FEW, SLOTS = range(10)
HALVES, MINIMUM, WIDE, PLAIN, PLANES = 1, 2, 4, 8, 16

# (flags, zero code) of every type.
TRAITS: dict[MatrixType, tuple[int, int]] = {
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
    Resident.Q8_0_PLANES: (WIDE | PLANES, BIAS),
}

# Bytes of 32 columns of a row in the two planes: a scale and upper nibbles; lower nibbles.
UPPER_ROW, LOWER_ROW = 18, 16

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
def row_bytes(code: int, cols: int) -> Any:
    """Bytes between the places where rows begin: those of a row, or of its part in the upper plane."""
    return cols // 32 * UPPER_ROW if slot(code, FLAGS) & PLANES else packed_bytes(code, cols)


@kernel()
def pitch_at(code: int, rows: int, cols: int, row: int) -> Any:
    """What kernels take as `pitch` with the tile that begins at `row`: bytes from row to row, or, for planes, from the
    tile's upper part to its lower one. There `row` is a multiple of 8."""
    if slot(code, FLAGS) & PLANES:
        return cols // 32 * (UPPER_ROW * rows + (LOWER_ROW - UPPER_ROW) * row)
    return packed_bytes(code, cols)


@kernel()
def forward(code: int, columns: int) -> Any:
    """Bytes by which the address of a tile moves when `columns` columns are left behind, and what pitch loses then."""
    if slot(code, FLAGS) & PLANES:
        return columns // 4 * UPPER_ROW, columns // 4 * (UPPER_ROW - LOWER_ROW)
    return packed_bytes(code, columns), 0


@kernel()
def takes_q8(code: int) -> Any:
    """Whether the product reads int8 activations."""
    return slot(code, INTEGERS) != 0
