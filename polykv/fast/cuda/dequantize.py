"""Rows of packed weight matrices as floats (twin of `polykv.ref.weights`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.weights import FLOATS, PIECE, own, type_name
from polykv.types import F32, I32, QuantTensor

THREADS = 128


def dequantize(w: QuantTensor, rows: I32 | None = None, *, out: F32 | None = None) -> F32:
    """The given rows of W (all when None) as float32 [n, cols]. A row that W does not have is NaN."""
    return scaled_rows(w, rows, 1.0, out)


def scaled_rows(w: QuantTensor, rows: I32 | None, scale: float, out: F32 | None) -> F32:
    """scale * W[rows], float32 [n, cols]."""
    n = w.rows if rows is None else int(check("rows", rows, np.int32, -1).shape[0])
    y: F32 = output(out, (n, w.cols))
    write_rows(y, w, rows, 0, n, scale)
    return y


def write_rows(y: Any, w: QuantTensor, rows: Any | None, first: int, n: int, scale: float) -> None:
    """scale * W[rows] to y [n, cols], float32 or float16; rows None: n rows from row `first` on."""
    file, define = ("dequantize_plain.cu", "WEIGHT_FLOAT") if w.type in FLOATS else ("dequantize.cu", "WEIGHT_TYPE")
    made = kernel(file, "dequantize_rows", OUTPUT_HALF=y.dtype == np.float16, **{define: type_name(w.type)})
    grid = (n, -(-w.cols // (PIECE[w.type] * THREADS)))
    launch(made, grid, (THREADS,), (y, own(w), rows, first, w.rows, w.cols, float(scale)))
