"""Matrix products with packed weights (twin of `polykv.ref.linear`).

    up to FEW rows    kernels on packed weights (kernels/linear_few*.cu): every weight is read once, nothing is unpacked
    more, Q8          tiles of W as float16 and the rounded rows as float16, multiplied by cuBLAS with float32 sums
    more, F32         tiles of W as float32, multiplied by cuBLAS in float32 (no TF32)

Up to FEW rows a row of y depends on its own row of x alone, bit for bit. Products of more rows are cuBLAS's, which
orders sums by the shape of the product; in Q8 they also round W to float16 (11 bits), 2e-4 of a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.linear_many import many_f16, many_f32
from polykv.fast.cuda.source import Define
from polykv.fast.cuda.weights import FLOATS, own, type_name
from polykv.types import F32, Activations, MatrixType, QuantTensor

# Rows of x that the kernels on packed weights take.
FEW = 16
# Rows of x that one block of the grid takes: the kernels that are compiled.
ROWS = (1, 4, 8)
# Pieces that a lane has on their way at once.
AHEAD = 2
# Warps of a block, one row of W each.
WARPS = 4
# Threads of a block that quantizes, four values each.
THREADS = 256


def linear(x: F32, w: QuantTensor, *, activations: Activations, out: F32 | None = None) -> F32:
    """y [R, rows] = x [R, cols] @ W.T.

    Activations.Q8 multiplies integers for quantized types; weights that are floats (F32, F16, BF16) take x as float32
    in either mode, as in `ref`. Raises ValueError when the widths differ.
    """
    data = own(w)
    n = check("x", x, np.float32, -1, w.cols).shape[0]
    y: F32 = output(out, (n, w.rows))
    q8 = activations == Activations.Q8 and w.type not in FLOATS
    if n > FEW:
        many = many_f16 if activations == Activations.Q8 else many_f32
        many(x, w, y)
    elif w.type in FLOATS:
        made = kernel("linear_few_plain.cu", "linear_few_plain", WEIGHT_FLOAT=type_name(w.type))
        _launch(made, (y, data, x, n, w.rows, w.cols), 4)
    elif not q8:
        made = kernel("linear_few_f32.cu", "linear_few_f32", WEIGHT_TYPE=type_name(w.type))
        _launch(made, (y, data, x, n, w.rows, w.cols), 4)
    else:
        codes, scales = quantize(x)
        rows = next((r for r in ROWS if n <= r), ROWS[-1])
        made = kernel("linear_few.cu", "linear_few", **few_defines(w.type, rows))
        _launch(made, (y, data, codes, scales, n, w.rows, w.cols), rows)
    return y


def few_defines(kind: MatrixType, rows: int) -> dict[str, Define]:
    """The defines of kernels/linear_few.cu for a weight type and a number of rows out of ROWS."""
    return {"WEIGHT_TYPE": type_name(kind), "LINEAR_ROWS": rows, "LINEAR_AHEAD": AHEAD}


def quantize(x: Any) -> tuple[Any, Any]:
    """Rows x [R, cols] as int8 per 32 values: codes int8 [R, cols], scales uint32 [R, cols / 32, 2] (quantize.cu)."""
    cp = cupy()
    codes = cp.empty(x.shape, np.int8)
    scales = cp.empty((x.shape[0], x.shape[1] // 32, 2), np.uint32)
    fours = x.size // 4
    launch(kernel("quantize.cu", "quantize_rows"), (-(-fours // THREADS),), (THREADS,), (codes, scales, x, fours))
    return codes, scales


def _launch(made: Any, arguments: tuple[Any, ...], rows: int) -> None:
    """Start a kernel of linear_few*.cu: blocks for WARPS rows of W, times those for `rows` rows of x."""
    n, weight_rows = arguments[-3:-1]
    launch(made, (-(-weight_rows // WARPS) * -(-n // rows),), (32 * WARPS,), arguments)
