"""Weight matrices on the device: every block cut into its fields, so that kernels read 16 bytes at a time.

A file has the fields of a block side by side (18 bytes for Q4_0: a scale and 16 bytes of codes), which no aligned load
fits. Here the matrix is all codes of all blocks, then all scales, and so on; the number of bytes is the same:

    [field 0 of block 0, 1, ...][field 1 of block 0, 1, ...]...

Fields go from the most aligned to the least, so that each begins at a multiple of its own alignment. The structs of
kernels/weights.cuh read this layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import asarray, check
from polykv.types import WEIGHT_BLOCK, MatrixType, QuantTensor, WeightType

# (offset, bytes) of the fields of a block, in the order of the device layout.
FIELDS: dict[MatrixType, tuple[tuple[int, int], ...]] = {
    WeightType.Q4_0: ((2, 16), (0, 2)),
    WeightType.Q4_1: ((4, 16), (0, 4)),
    WeightType.Q5_0: ((6, 16), (2, 4), (0, 2)),
    WeightType.Q5_1: ((8, 16), (0, 8)),
    WeightType.Q8_0: ((2, 32), (0, 2)),
    WeightType.Q2_K: ((16, 64), (0, 16), (80, 4)),
    WeightType.Q3_K: ((32, 64), (0, 32), (96, 12), (108, 2)),
    WeightType.Q4_K: ((16, 128), (0, 16)),
    WeightType.Q5_K: ((48, 128), (16, 32), (0, 16)),
    WeightType.Q6_K: ((0, 128), (128, 64), (192, 16), (208, 2)),
    WeightType.IQ4_NL: ((2, 16), (0, 2)),
    WeightType.IQ4_XS: ((8, 128), (0, 8)),
}

# Types whose values are floats: they stay as they are.
FLOATS: dict[MatrixType, str] = {
    WeightType.F32: "PlainF32",
    WeightType.F16: "PlainF16",
    WeightType.BF16: "PlainBF16",
}


# Values that a thread takes at once: a piece of the structs in kernels/weights.cuh.
_WIDE = (WeightType.Q2_K, WeightType.Q3_K, WeightType.Q6_K)
PIECE: dict[MatrixType, int] = {**dict.fromkeys(FLOATS, 1), **dict.fromkeys(FIELDS, 32), **dict.fromkeys(_WIDE, 64)}


@dataclass(frozen=True, eq=False)
class DeviceTensor(QuantTensor):
    """A matrix on the device: `data` is a CuPy array uint8 [rows, row_bytes] whose bytes are in the order above.

    Only operations of this backend read inside. rows, cols, type and nbytes are those of the file's matrix.
    """


def matrix(w: QuantTensor) -> DeviceTensor:
    """A file's matrix, copied to the device.

    Raises ValueError for a type that has no kernels here (`supports_weight` says so before).
    """
    if w.type not in FIELDS and w.type not in FLOATS:
        raise ValueError(f"no kernel for {w.type.name}")
    return DeviceTensor(w.type, by_field(asarray(w.data), w.type), w.cols)


def by_field(data: Any, kind: MatrixType) -> Any:
    """The bytes of a matrix, uint8 [rows, row_bytes] of either library, in the order of fields, in the same shape."""
    if kind in FLOATS or data.size == 0:
        return data
    blocks = data.reshape(-1, WEIGHT_BLOCK[kind][1])
    # NumPy's function works on CuPy's arrays, and stays on the device.
    return np.concatenate([blocks[:, at : at + size].reshape(-1) for at, size in FIELDS[kind]]).reshape(data.shape)


def own(w: QuantTensor) -> Any:
    """The bytes of a matrix that was made by `matrix`.

    Raises TypeError for one that was not: its bytes are in another place, and in another order.
    """
    if not isinstance(w, DeviceTensor):
        raise TypeError(f"a {type(w).__name__} of the host; operations of cuda take matrices from `weights.matrix`")
    return check("the matrix", w.data, np.uint8, -1, -1)


def type_name(kind: MatrixType) -> str:
    """What the kernels call a type: the value of their define WEIGHT_TYPE, or WEIGHT_FLOAT."""
    return FLOATS.get(kind, kind.name)
