"""Looking for NaN and infinity in packed weights: in the values of float tensors, in the scales of quantized blocks.

Codes are integers and always finite, so a block is finite exactly when its float16 scales are. Reads the whole file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polykv.model.gguf import GgufFile
from polykv.types import U8, WEIGHT_BLOCK, WeightType

# Byte offsets of the float16 scales (and minimums) in one block; spec: GGUF quantized weight types.
SCALE_AT: dict[WeightType, tuple[int, ...]] = {
    WeightType.Q4_0: (0,),
    WeightType.Q4_1: (0, 2),
    WeightType.Q5_0: (0,),
    WeightType.Q5_1: (0, 2),
    WeightType.Q8_0: (0,),
    WeightType.Q2_K: (80, 82),
    WeightType.Q3_K: (108,),
    WeightType.Q4_K: (0, 2),
    WeightType.Q5_K: (0, 2),
    WeightType.Q6_K: (208,),
    WeightType.IQ4_NL: (0,),
    WeightType.IQ4_XS: (0,),
}
# Bits of the exponent: a value is NaN or infinite when all of them are set.
_FLOATS: dict[WeightType, tuple[str, int]] = {
    WeightType.F32: ("<u4", 0x7F800000),
    WeightType.F16: ("<u2", 0x7C00),
    WeightType.BF16: ("<u2", 0x7F80),
}
_CHUNK_BLOCKS = 1 << 18


@dataclass(frozen=True)
class TensorFault:
    """A tensor with values or scales that are not finite: how many of how many, and the first one's row."""

    name: str
    type: WeightType
    bad: int
    total: int
    first_row: int

    def __str__(self) -> str:
        what = "values" if self.type in _FLOATS else "scales"
        where = f"first in row {self.first_row}"
        return f"{self.name} ({self.type.name}): {self.bad} of {self.total} {what} not finite, {where}"


def nonfinite(gguf: GgufFile) -> list[TensorFault]:
    """All tensors of the file that hold NaN or infinity, in file order."""
    faults = []
    for name, info in gguf.tensors.items():
        raw = gguf.data[info.offset : info.offset + info.nbytes]
        values, size = WEIGHT_BLOCK[info.type]
        per_row = info.shape[-1] // values
        bad = total = 0
        first = -1
        for start in range(0, info.nbytes, _CHUNK_BLOCKS * size):
            flags = _flags(info.type, raw[start : start + _CHUNK_BLOCKS * size].reshape(-1, size))
            total += flags.size
            if flags.any():
                if first < 0:
                    first = (start // size + int(np.nonzero(flags.any(axis=1))[0][0])) // per_row
                bad += int(flags.sum())
        if bad:
            faults.append(TensorFault(name, info.type, bad, total, first))
    return faults


def _flags(kind: WeightType, blocks: U8) -> npt.NDArray[np.bool_]:
    """Not-finite flags [blocks, scales per block] of uint8 blocks [n, block bytes]."""
    if kind in _FLOATS:
        dtype, exponent = _FLOATS[kind]
        bits, mask = blocks.view(dtype), exponent
    else:
        columns = [np.ascontiguousarray(blocks[:, o : o + 2]).view("<u2") for o in SCALE_AT[kind]]
        bits, mask = np.concatenate(columns, axis=1), 0x7C00
    flags: npt.NDArray[np.bool_] = (bits & mask) == mask
    return flags
