"""Weight matrices: their storage types, and the packed matrix that operations take (`polykv.types`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]


class WeightType(IntEnum):
    """Storage types of weights, numbered as in GGUF files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30


class Resident(IntEnum):
    """Storage types that a backend makes of a matrix when it is loaded; no file has them.

    Q8_0_PLANES: the values of Q8_0, the upper four bits of all codes before the lower ones (`polykv.ref.screen`).
    """

    Q8_0_PLANES = -8


MatrixType = WeightType | Resident

# (values, bytes) of one storage block; spec: GGUF quantized weight types.
WEIGHT_BLOCK: dict[MatrixType, tuple[int, int]] = {
    WeightType.F32: (1, 4),
    WeightType.F16: (1, 2),
    WeightType.BF16: (1, 2),
    WeightType.Q4_0: (32, 18),
    WeightType.Q4_1: (32, 20),
    WeightType.Q5_0: (32, 22),
    WeightType.Q5_1: (32, 24),
    WeightType.Q8_0: (32, 34),
    WeightType.Q2_K: (256, 84),
    WeightType.Q3_K: (256, 110),
    WeightType.Q4_K: (256, 144),
    WeightType.Q5_K: (256, 176),
    WeightType.Q6_K: (256, 210),
    WeightType.IQ4_NL: (32, 18),
    WeightType.IQ4_XS: (256, 136),
    Resident.Q8_0_PLANES: (32, 34),
}


@dataclass(frozen=True, eq=False)
class QuantTensor:
    """A weight matrix as its file has it: y = x @ W.T with W [rows, cols].

    `data` is uint8 [rows, row_bytes], C-contiguous, usually a view of a memory map. Blocks run along a row, but for
    `Resident` types, whose layout concerns the matrix as a whole.
    """

    type: MatrixType
    data: U8
    cols: int

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)
