"""merge (twin of `polykv.ref.merge`)."""

from __future__ import annotations

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.types import F32


def merge(outs: F32, lses: F32, *, out: F32 | None = None) -> tuple[F32, F32]:
    """outs [S, R, H, D], lses [S, R, H] -> out [R, H, D], lse [R, H]."""
    parts, rows, heads, dim = check("outs", outs, np.float32, -1, -1, -1, -1).shape
    check("lses", lses, np.float32, parts, rows, heads)
    y: F32 = output(out, (rows, heads, dim))
    lse = cupy().empty((rows, heads), np.float32)
    vectors = rows * heads
    launch(kernel("merge.cu", "merge"), (vectors,), (128,), (y, lse, outs, lses, parts, vectors, dim))
    return y, lse
