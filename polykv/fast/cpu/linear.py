"""Matrix products with packed weights (twin of `polykv.ref.linear`).

    q8.py               rows of activations as int8
    linear_types.py     what kernels must know of each storage type
    linear_unpack*.py   8 weight rows: packed bytes -> codes and scales, transposed
    linear_q8.py        integer products of such a tile
    linear_float.py     float products of such a tile
    linear_product.py   `product`: a range of weight rows times all activation rows
    linear.py           the operation: chunks, workers

Kernels that do more than one product in their own parallel region call `takes_q8`, `quantize_rows` and `product`;
the way to cut the work is `weight_chunk` and `row_chunk` below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_product import ROWS, SCRATCH, product
from polykv.fast.cpu.linear_types import takes_q8
from polykv.fast.cpu.q8 import quantize_row
from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team import claim, enter, finish_and_claim, wait
from polykv.types import F32, Activations, QuantTensor

# Activation rows of a chunk take at most this much, so that they stay in the second-level cache; and weights of a chunk
# are at least so many that taking it from the counter does not matter.
ROW_BYTES, WEIGHTS = 1 << 18, 1 << 14
# Up to this many bytes, one worker quantizes the activations before the others start.
ALONE = 1 << 14
# Rows per chunk when they share that work.
QUANTIZE_ROWS = 8


@kernel()
def address(array: Any) -> Any:
    """Address of an array, five times faster than `array.ctypes.data`."""
    return addr(array)


@kernel()
def row_chunk(cols: int, n: int) -> Any:
    """Activation rows per chunk: a multiple of 4, up to n."""
    fit = max(4, ROW_BYTES // (2 * cols) // 4 * 4)
    return max(1, min(n, min(fit, ROWS)))


@kernel()
def weight_chunk(rows: int, cols: int, n: int, workers: int) -> Any:
    """Weight rows per chunk: a multiple of 16; about 8 chunks per worker, if they have enough to do."""
    share = -(-rows // (8 * workers * max(1, -(-n // row_chunk(cols, n)))))
    least = -(-WEIGHTS // (cols * min(n, 8) + 1))
    return -(-max(share, least) // 16) * 16


@kernel()
def quantize_rows(x: int, x_pitch: int, cols: int, first: int, last: int, q8: int) -> None:
    """Rows first .. last - 1 of x to int8 rows of 2 * cols bytes at q8."""
    for r in range(first, last):
        quantize_row(x + r * x_pitch, cols, q8 + 2 * cols * r)


@kernel()
def product_phase(
    desk: int,
    phase: int,
    workers: int,
    kind: int,
    activations: int,
    w: int,
    rows: int,
    cols: int,
    x: int,
    x_pitch: int,
    n: int,
    y: int,
    y_pitch: int,
    scratch: int,
) -> None:
    """One phase of a region (see `team`): y [n, rows] = x W^T, shared among the workers."""
    step, group = row_chunk(cols, n), weight_chunk(rows, cols, n, workers)
    groups, chunks = -(-rows // group), -(-rows // group) * -(-n // step)
    chunk = claim(desk, phase)
    while chunk < chunks:
        r, first = chunk // groups * step, chunk % groups * group
        m, last = min(step, n - r), min(first + group, rows)
        product(
            kind,
            activations,
            w,
            rows,
            cols,
            x + r * x_pitch,
            x_pitch,
            m,
            y + r * y_pitch,
            y_pitch,
            first,
            last,
            scratch,
        )
        chunk = finish_and_claim(desk, phase)
    wait(desk, phase, chunks)


@kernel()
def quantize_phase(desk: int, phase: int, x: int, x_pitch: int, cols: int, n: int, q8: int) -> None:
    """One phase of a region: n rows of x to int8 rows at q8."""
    chunks = -(-n // QUANTIZE_ROWS)
    chunk = claim(desk, phase)
    while chunk < chunks:
        first = QUANTIZE_ROWS * chunk
        quantize_rows(x, x_pitch, cols, first, min(first + QUANTIZE_ROWS, n), q8)
        chunk = finish_and_claim(desk, phase)
    wait(desk, phase, chunks)


@kernel()
def _work(
    worker: int,
    workers: int,
    desk: int,
    memory: int,
    kind: int,
    activations: int,
    w: int,
    rows: int,
    cols: int,
    x: int,
    n: int,
    y: int,
) -> None:
    scratch, pitch, q8 = memory + worker * SCRATCH, 4 * cols, memory + workers * SCRATCH
    if takes_q8(kind, activations):
        if 4 * cols * n > ALONE:
            quantize_phase(desk, 0, x, pitch, cols, n, q8)
        x, pitch = q8, 2 * cols
    product_phase(desk, 1, workers, kind, activations, w, rows, cols, x, pitch, n, y, 4 * rows, scratch)


@kernel(parallel=True)
def _region(
    workers: int,
    desk: int,
    memory: int,
    kind: int,
    activations: int,
    w: int,
    rows: int,
    cols: int,
    x: int,
    n: int,
    y: int,
) -> None:
    if takes_q8(kind, activations) and 4 * cols * n <= ALONE:
        quantize_rows(x, 4 * cols, cols, 0, n, memory + workers * SCRATCH)
    for worker in prange(workers):
        _work(worker, workers, desk, memory, kind, activations, w, rows, cols, x, n, y)


def linear(x: F32, w: QuantTensor, *, activations: Activations, out: F32 | None = None) -> F32:
    """y [R, rows] = x [R, cols] @ W.T.

    Activations.Q8 multiplies integers for quantized types; weights that are floats (F32, F16, BF16) take x as float32
    in either mode, as in `ref`.
    """
    n, cols = x.shape
    y = np.empty((n, w.rows), np.float32) if out is None else out
    x = np.ascontiguousarray(x)
    direct = y if y.flags.c_contiguous else np.empty(y.shape, np.float32)
    with enter() as team:
        memory = team.memory(team.workers * SCRATCH + 2 * cols * n)
        data = (address(w.data), w.rows, cols, address(x), n, address(direct))
        _region(team.workers, team.desk, memory, int(w.type), int(activations), *data)
    if direct is not y:
        y[...] = direct
    return y
