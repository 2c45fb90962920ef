"""dequantize: packed rows of a weight matrix as float32.

A row is a run of blocks, so any set of rows can be read alone: that is how one embedding is looked up in a matrix of
262,144 rows. Source of the block layouts: docs/FORMATS.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polykv.ref import quants_iq, quants_k, quants_legacy
from polykv.results import result
from polykv.types import F32, I32, U8, WEIGHT_BLOCK, MatrixType, QuantTensor, WeightType

DECODERS: dict[MatrixType, Callable[[U8], F32]] = {
    WeightType.F32: quants_legacy.f32,
    WeightType.F16: quants_legacy.f16,
    WeightType.BF16: quants_legacy.bf16,
    WeightType.Q4_0: quants_legacy.q4_0,
    WeightType.Q4_1: quants_legacy.q4_1,
    WeightType.Q5_0: quants_legacy.q5_0,
    WeightType.Q5_1: quants_legacy.q5_1,
    WeightType.Q8_0: quants_legacy.q8_0,
    WeightType.Q2_K: quants_k.q2_k,
    WeightType.Q3_K: quants_k.q3_k,
    WeightType.Q4_K: quants_k.q4_k,
    WeightType.Q5_K: quants_k.q5_k,
    WeightType.Q6_K: quants_k.q6_k,
    WeightType.IQ4_NL: quants_iq.iq4_nl,
    WeightType.IQ4_XS: quants_iq.iq4_xs,
}


def dequantize(w: QuantTensor, rows: I32 | None = None, *, out: F32 | None = None) -> F32:
    """The given rows of W (all when None) as float32 [n, cols].

    >>> data = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32).view(np.uint8)
    >>> dequantize(QuantTensor(WeightType.F32, data, cols=2), np.array([1], np.int32))
    array([[3., 4.]], dtype=float32)
    """
    data = w.data if rows is None else w.data[rows]
    values, size = WEIGHT_BLOCK[w.type]
    blocks = np.ascontiguousarray(data).reshape(data.shape[0], w.cols // values, size)
    # A damaged file can hold infinite scales. They are passed on as they are: the caller checks its logits.
    with np.errstate(invalid="ignore", over="ignore"):
        y = DECODERS[w.type](blocks).reshape(data.shape[0], w.cols)
    return give(y, out)


def give(y: F32, out: F32 | None) -> F32:
    """`y`, or `out` after receiving it: every operation ends this way. Raises ValueError for another shape."""
    if out is None:
        return y
    result(out, y.shape)[...] = y
    return out
