"""Matrix products with packed weights (twin of `polykv.ref.linear`).

    q8.py               rows of activations as int8
    linear_types.py     what kernels must know of each storage type; linear_code.py builds that table
    linear_unpack*.py   8 weight rows: packed bytes -> codes and scales, transposed; linear_plain.py for float types
    linear_q8.py        integer products of such a tile
    linear_few.py       the same for few rows, without storing the tile
    linear_float.py     float products of such a tile
    linear_ahead.py     weights asked for before they are needed
    linear_product.py   `product`: a range of weight rows times all activation rows
    linear_team.py      phases of a job of the team: `quantize_phase`, `product_phase`
    linear.py           the operation

Kernels that do several products in one job use the phases, or `quantize_row` and `product` directly:
see `mlp.py`. In Python such an operation passes addresses (`address`) and `linear_code.code(type, activations)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_product import SCRATCH
from polykv.fast.cpu.linear_team import copies, copy_of, product_phase, quantize_phase
from polykv.fast.cpu.linear_types import slot, takes_q8
from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team import TEAM
from polykv.results import result
from polykv.types import F32, Activations, QuantTensor

__all__ = ["address", "code", "linear", "product_phase", "quantize_phase"]


@kernel()
def address(array: Any) -> Any:
    """Address of an array, five times faster than `array.ctypes.data`."""
    return addr(array)


# The integers of a job; the first four are the matrix (`linear_team`).
CODE, WEIGHTS, ROWS, COLS, X, N, Y, MEMORY = range(8)


@kernel()
def _body(job: int, desk: int, worker: int, workers: int) -> None:
    cols, n, x, memory = slot(job, COLS), slot(job, N), slot(job, X), slot(job, MEMORY)
    scratch, q8 = memory + worker * SCRATCH, copy_of(memory + workers * SCRATCH, 2 * cols * n, n, worker)
    if takes_q8(slot(job, CODE)):
        quantize_phase(desk, 0, x, 4 * cols, cols, n, q8)
    product_phase(desk, 1, workers, job, 1, x, q8, n, slot(job, Y), 0, 0, 0, scratch)


def linear(x: F32, w: QuantTensor, *, activations: Activations, out: F32 | None = None) -> F32:
    """y [R, rows] = x [R, cols] @ W.T.

    Activations.Q8 multiplies integers for quantized types; weights that are floats (F32, F16, BF16) take x as float32
    in either mode, as in `ref`. Raises ValueError when the widths differ.
    """
    n, cols = x.shape
    if cols != w.cols:
        raise ValueError(f"x has {cols} columns, W has {w.cols}")
    y = result(out, (n, w.rows))
    x = np.ascontiguousarray(x, np.float32)
    direct = y if y.flags.c_contiguous and y.dtype == np.float32 else np.empty(y.shape, np.float32)
    team = TEAM
    with team.lock:
        memory = team.memory(team.workers * SCRATCH + copies(n, team.workers) * 2 * cols * n)
        kind = code(w.type, activations)
        job = np.array((kind, address(w.data), w.rows, cols, address(x), n, address(direct), memory), np.int64)
        team.run(entry(_body, 4), address(job))
    if direct is not y:
        y[...] = direct
    return y
