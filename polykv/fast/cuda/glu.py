"""glu (twin of `polykv.ref.glu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.types import F32, Glu

# The functions of kernels/glu.cuh.
GATES = {Glu.SILU: "gate_silu", Glu.GELU_TANH: "gate_gelu_tanh"}
THREADS = 256


def glu(gate: F32, up: F32, kind: Glu, *, out: F32 | None = None) -> F32:
    """act(gate) * up, [R, F]."""
    shape = check("gate", gate, np.float32, -1, -1).shape
    return glu_columns(gate, check("up", up, np.float32, *shape), kind, output(out, shape))


def glu_columns(gate: Any, up: Any, kind: Glu, y: Any) -> F32:
    """The same of [R, F] columns of other arrays."""
    rows, cols = y.shape
    pitches = np.int64(gate.strides[0] // 4), np.int64(up.strides[0] // 4)
    made = kernel("glu.cu", "glu", GLU_GATE=GATES[kind])
    launch(made, (-(-y.size // THREADS),), (THREADS,), (y, gate, up, *pitches, rows, cols))
    found: F32 = y
    return found
