"""linear: y = x W^T with packed weights.

    Activations.F32    y = x W^T
    Activations.Q8     y = x' W^T,  x' = d * round(x / d),  d = max|x| / 127 over every 32 values of a row

Q8 is what a fast kernel gets when it multiplies integers and scales each block's exact integer dot product. d stays
float32 (llama.cpp rounds it to fp16), so x' is the best int8 can do. Weights that are not quantized (F32, F16, BF16)
have no integer product and always take x itself.
"""

from __future__ import annotations

import numpy as np

from polykv.ref.blocks import flat, split
from polykv.ref.scalar import int8_blocks
from polykv.ref.weights import dequantize, give
from polykv.types import F32, WEIGHT_BLOCK, Activations, QuantTensor

# Values of W that are unpacked at a time: 16 MB, so an output matrix of 262,144 rows needs no more memory than a layer.
TILE = 1 << 22


def linear(x: F32, w: QuantTensor, *, activations: Activations, out: F32 | None = None) -> F32:
    """y [R, rows] = x [R, cols] @ W.T."""
    if activations == Activations.Q8 and WEIGHT_BLOCK[w.type][0] > 1:
        x = round_activations(x)
    y = np.empty((x.shape[0], w.rows), np.float32)
    step = max(1, TILE // w.cols)
    for first in range(0, w.rows, step):
        tile = QuantTensor(w.type, w.data[first : first + step], w.cols)
        y[:, first : first + step] = x @ dequantize(tile).T
    return give(y, out)


def round_activations(x: F32) -> F32:
    """x rounded to int8 per 32 values and scaled back."""
    codes, d = int8_blocks(split(x, 32), limit=np.inf)
    return flat(codes * d)
