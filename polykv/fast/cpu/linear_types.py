"""What the weight kernels must know of each storage type.

    blocks of 32 columns (LEGACY) or super-blocks of 256 (the K types and IQ4_XS)
    HALVES   scales belong to 16 columns, not 32
    MINIMUM  y = a * q + b, else y = a * (q - zero)
    WIDE     codes need 8 bits; they are stored plus BIAS
    PLAIN    floats: no codes, no int8 activations

Constants, because kernels are compiled with them. PANEL_* is the layout of unpacked weights, see `linear_unpack`.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd_weights import BIAS
from polykv.types import WEIGHT_BLOCK, Activations, WeightType

F32, F16, BF16 = int(WeightType.F32), int(WeightType.F16), int(WeightType.BF16)
Q4_0, Q4_1, Q5_0, Q5_1 = (int(t) for t in (WeightType.Q4_0, WeightType.Q4_1, WeightType.Q5_0, WeightType.Q5_1))
Q8_0, IQ4_NL, IQ4_XS = int(WeightType.Q8_0), int(WeightType.IQ4_NL), int(WeightType.IQ4_XS)
Q2_K, Q3_K, Q4_K = int(WeightType.Q2_K), int(WeightType.Q3_K), int(WeightType.Q4_K)
Q5_K, Q6_K = int(WeightType.Q5_K), int(WeightType.Q6_K)

Q8 = int(Activations.Q8)
HALVES, MINIMUM, WIDE, PLAIN = 1, 2, 4, 8

# Unpacked weights: 8 rows of 32 columns take PANEL_BLOCK bytes.
PANEL_A, PANEL_B, PANEL_BLOCK = 256, 320, 384


@kernel()
def traits(kind: int) -> Any:
    """The flags of a type."""
    if kind in (F32, F16, BF16):
        return PLAIN
    if kind in (Q4_1, Q5_1, Q4_K, Q5_K):
        return MINIMUM
    if kind == Q2_K:
        return HALVES | MINIMUM
    if kind in (Q3_K, Q6_K):
        return HALVES
    if kind in (Q8_0, IQ4_NL, IQ4_XS):
        return WIDE
    return 0


@kernel()
def zero_code(kind: int) -> Any:
    """The stored code that means zero, where there is no minimum."""
    if kind == Q4_0:
        return 8
    if kind == Q5_0:
        return 16
    if kind == Q6_K:
        return 32
    if kind == Q3_K:
        return 4
    if kind in (Q8_0, IQ4_NL, IQ4_XS):
        return BIAS
    return 0


@kernel()
def takes_q8(kind: int, activations: int) -> Any:
    """Whether a product with this type reads int8 activations."""
    return activations == Q8 and kind not in (F32, F16, BF16)


@kernel()
def block_bytes(kind: int, columns: int) -> Any:
    """Packed bytes of `columns` columns of one row; columns is a multiple of the block."""
    for t, values, size in SIZES:
        if t == kind:
            return columns // values * size
    return 0


SIZES = tuple((int(t), values, size) for t, (values, size) in WEIGHT_BLOCK.items())
