"""fwht (twin of `polykv.ref.fwht`): powers of two from 32 on in registers, other orders in shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import asarray, check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.hadamard import core, core_order
from polykv.types import F32

# Groups that a warp holds in registers.
SIZES = (32, 64, 128, 256, 512, 1024)
WARPS = 4


def fwht(x: F32, signs1: F32, signs2: F32, *, inverse: bool = False, out: F32 | None = None) -> F32:
    """Rotate consecutive groups of g = len(signs1) values of the last axis; g as in `polykv.hadamard`."""
    g = check("signs1", signs1, np.float32, -1).shape[0]
    check("signs2", signs2, np.float32, g)
    order = core_order(g)
    if order == 0 or check("x", x, np.float32).shape[-1] % g:
        raise ValueError(f"there is no rotation of rows of {x.shape[-1]} values in groups of {g}")
    y: F32 = output(out, x.shape)
    first, last = (signs2, signs1) if inverse else (signs1, signs2)
    groups, scale = x.size // g, float(1 / np.sqrt(g))
    if g in SIZES:
        made = kernel("fwht.cu", "fwht", FWHT_SIZE=g)
        launch(made, (-(-groups // WARPS),), (32 * WARPS,), (y, x, first, last, scale, groups))
    else:
        signs = _core(order, inverse, cupy().cuda.runtime.getDevice())
        made = kernel("fwht_any.cu", "fwht_any")
        launch(made, (groups,), (128,), (y, x, first, last, signs, scale, g, order), shared=8 * g)
    return y


@cache
def _core(order: int, transposed: bool, device: int) -> Any:
    """Paley's matrix, or its transpose, int8 [order, order] on the device."""
    return asarray(core(order).T if transposed else core(order))
