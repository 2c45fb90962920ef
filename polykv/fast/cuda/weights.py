"""Weight matrices on the device: every block cut into its fields, so that kernels read 16 bytes at a time.

A file has the fields of a block side by side (18 bytes for Q4_0: a scale and 16 bytes of codes), which no aligned load
fits. Here the matrix is all codes of all blocks, then all scales, and so on; the number of bytes is the same:

    [field 0 of block 0, 1, ...][field 1 of block 0, 1, ...]...

Fields go from the most aligned to the least, so that each begins at a multiple of its own alignment. The structs of
kernels/weights.cuh read this layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda.arena import Arena
from polykv.fast.cuda.arrays import asarray, check
from polykv.fast.cuda.device import cupy
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


# Bytes of a file's matrix that are on their way to the device at a time.
STAGED = 64 << 20
# Values that a thread takes at once: a piece of the structs in kernels/weights.cuh.
_WIDE = (WeightType.Q2_K, WeightType.Q3_K, WeightType.Q6_K)
PIECE: dict[MatrixType, int] = {**dict.fromkeys(FLOATS, 1), **dict.fromkeys(FIELDS, 32), **dict.fromkeys(_WIDE, 64)}


@dataclass(frozen=True, eq=False)
class DeviceTensor(QuantTensor):
    """A matrix on the device: `data` is a CuPy array uint8 [rows, row_bytes] whose bytes are in the order above.

    Only operations of this backend read inside. rows, cols, type and nbytes are those of the file's matrix.
    """


def fields_of(kind: MatrixType) -> tuple[tuple[int, int], ...]:
    """(offset, bytes) of the fields of a block, in the order of the device layout; types of floats have one."""
    return FIELDS.get(kind, ((0, WEIGHT_BLOCK[kind][1]),))


def matrix(w: QuantTensor) -> DeviceTensor:
    """A file's matrix, copied to the device.

    Raises ValueError for a type that has no kernels here (`supports_weight` says so before).
    """
    return joined_rows([w], w.type)


def joined_rows(ws: Sequence[QuantTensor], kind: MatrixType, arena: Arena | None = None) -> DeviceTensor:
    """Rows of matrices of a file or of the device, all of one type, in their order as one matrix. arena: where it
    lies; in CuPy's pool when None.

    Raises ValueError for a type that has no kernels here.
    """
    if kind not in FIELDS and kind not in FLOATS:
        raise ValueError(f"no kernel for {kind.name}")
    if len(ws) == 1 and isinstance(ws[0], DeviceTensor):
        return ws[0]
    shape = sum(w.rows for w in ws), ws[0].data.shape[1]
    out = cupy().empty(shape, np.uint8) if arena is None else arena.take(shape)
    size = WEIGHT_BLOCK[kind][1]
    total, at = out.size // size, 0
    places = []
    for _, width in fields_of(kind):
        places.append(out.reshape(-1)[at * total : (at + width) * total].reshape(total, width))
        at += width
    first = 0
    for blocks in (piece for w in ws for piece in _pieces(w)):
        for place, field in zip(places, blocks, strict=True):
            place[first : first + len(field)] = field
        first += len(blocks[0])
    return DeviceTensor(kind, out, ws[0].cols)


def _pieces(w: QuantTensor) -> Iterator[list[Any]]:
    """Fields [blocks, bytes] on the device of all blocks of a matrix, in order, some rows of the host at a time."""
    size, fields = WEIGHT_BLOCK[w.type][1], fields_of(w.type)
    if isinstance(w, DeviceTensor):
        data, at = own(w).reshape(-1), 0
        n, found = data.size // size, []
        for _, width in fields:
            found.append(data[at * n : (at + width) * n].reshape(n, width))
            at += width
        yield found
        return
    step = max(1, STAGED // max(1, w.data.shape[1]))
    for row in range(0, w.rows, step):
        blocks = asarray(w.data[row : row + step]).reshape(-1, size)
        yield [blocks[:, at : at + width] for at, width in fields]


def by_field(data: Any, kind: MatrixType) -> Any:
    """The bytes of a matrix of the host, uint8 [rows, row_bytes], in the order of fields, in the same shape."""
    if data.size == 0:
        return data
    blocks = data.reshape(-1, WEIGHT_BLOCK[kind][1])
    return np.concatenate([blocks[:, at : at + size].reshape(-1) for at, size in fields_of(kind)]).reshape(data.shape)


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
