"""Products of many rows: tiles of W are unpacked and multiplied by cuBLAS, as `linear` says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.dequantize import write_rows
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.weights import FLOATS
from polykv.types import QuantTensor

# Values of W that are unpacked at a time, 128 MB as float16. With tiles that fit the L2 cache products of 4,096 rows
# are too small for cuBLAS: 18,500 tokens a second instead of 24,500 (Llama-8B shape, H200).
TILE = 1 << 26
# Constants of the CUDA libraries: types of arrays, type of sums, the default algorithm, operations on matrices.
R_16F, R_32F = 2, 0
COMPUTE_32F, DEFAULT = 68, -1
KEEP, TRANSPOSE = 0, 1


def many_f16(x: Any, w: QuantTensor, y: Any) -> None:
    """y = x' W'^T with float16 operands and float32 sums.

    x' is x rounded to int8 per 32 values when W is quantized, then to float16 after scaling every row by a power of
    two, which y is multiplied with at the end; W' is W rounded to float16.
    """
    cp = cupy()
    n, cols = x.shape
    half, scales = cp.empty(x.shape, np.float16), cp.empty(n, np.float32)
    made = kernel("rounded.cu", "round_rows", ROUND_INT8=w.type not in FLOATS)
    launch(made, (n,), (256,), (half, scales, x, cols))
    numbers = np.array([1, 0], np.float32)
    blas, handle = cp.cuda.cublas, cp.cuda.device.get_cublas_handle()
    for tile, first, rows in _tiles(w, np.float16):
        # cuBLAS counts columns first: the result seen its way is y^T = W x^T, a part of its rows at a time.
        blas.gemmEx(
            *(handle, TRANSPOSE, KEEP, rows, n, cols, numbers.ctypes.data),
            *(tile.data.ptr, R_16F, cols, half.data.ptr, R_16F, cols, numbers.ctypes.data + 4),
            *(y.data.ptr + 4 * first, R_32F, w.rows, COMPUTE_32F, DEFAULT),
        )
    launch(kernel("scale_rows.cu", "scale_rows"), (n, -(-w.rows // 256)), (256,), (y, scales, w.rows))


def many_f32(x: Any, w: QuantTensor, y: Any) -> None:
    """y = x W^T in float32."""
    cp = cupy()
    n, cols = x.shape
    numbers = np.array([1, 0], np.float32)
    blas, handle = cp.cuda.cublas, cp.cuda.device.get_cublas_handle()
    for tile, first, rows in _tiles(w, np.float32):
        blas.sgemm(
            *(handle, TRANSPOSE, KEEP, rows, n, cols, numbers.ctypes.data),
            *(tile.data.ptr, cols, x.data.ptr, cols, numbers.ctypes.data + 4),
            *(y.data.ptr + 4 * first, w.rows),
        )


def _tiles(w: QuantTensor, dtype: type[np.generic]) -> Iterator[tuple[Any, int, int]]:
    """Rows of W as floats in a buffer that is used again: the tile, its first row, and how many there are."""
    step = max(1, min(w.rows, TILE // w.cols))
    tile = cupy().empty((step, w.cols), dtype)
    for first in range(0, w.rows, step):
        rows = min(step, w.rows - first)
        write_rows(tile[:rows], w, None, first, rows, 1.0)
        yield tile, first, rows
