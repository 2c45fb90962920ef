"""Matrix products with packed weights (twin of `polykv.ref.linear`).

    few rows     kernels on packed weights (kernels/linear_*.cu): every weight is read once, nothing is unpacked
    more, Q8     tiles of W as float16 and the rounded rows as float16, multiplied by cuBLAS with float32 sums
    more, F32    tiles of W as float32, multiplied by cuBLAS in float32 (no TF32)

From two rows up to `few(w)`, a row of y depends on its own row of x alone, bit for bit; a single row is added up in
another order, in which it is read faster. Products of more rows are cuBLAS's: it
orders sums by the shape of the product; in Q8 they also round W to float16 (11 bits), 2e-4 of a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.linear_int8 import product, quantize, takes_tiles
from polykv.fast.cuda.linear_many import many_f16, many_f32
from polykv.fast.cuda.weights import FLOATS, own, type_name
from polykv.types import F32, Activations, QuantTensor

# Rows of x that a block of the float32 kernels takes, and its warps, one row of W each.
ROWS = 4
WARPS = 4


def few(w: QuantTensor) -> int:
    """Rows of x up to which W is read packed: on tensor cores more of them cost nothing."""
    return 32 if w.type not in FLOATS and takes_tiles(w) else 16


def linear(x: F32, w: QuantTensor, *, activations: Activations, out: F32 | None = None) -> F32:
    """y [R, rows] = x [R, cols] @ W.T.

    Activations.Q8 multiplies integers for quantized types; weights that are floats (F32, F16, BF16) take x as float32
    in either mode, as in `ref`. Raises ValueError when the widths differ.
    """
    data = own(w)
    n = check("x", x, np.float32, -1, w.cols).shape[0]
    y: F32 = output(out, (n, w.rows))
    if n > few(w):
        many = many_f16 if activations == Activations.Q8 else many_f32
        many(x, w, y)
    elif w.type in FLOATS:
        _float32("linear_few_plain", {"WEIGHT_FLOAT": type_name(w.type)}, y, data, x)
    elif activations == Activations.F32:
        _float32("linear_few_f32", {"WEIGHT_TYPE": type_name(w.type)}, y, data, x)
    else:
        product(y, w, quantize(x, takes_tiles(w, n)))
    return y


def _float32(entry: str, defines: dict[str, str], y: Any, data: Any, x: Any) -> None:
    """A kernel that takes float32 activations."""
    (n, cols), rows = x.shape, y.shape[1]
    grid = (-(-rows // WARPS) * -(-n // ROWS),)
    launch(kernel(f"{entry}.cu", entry, **defines), grid, (32 * WARPS,), (y, data, x, n, rows, cols))
