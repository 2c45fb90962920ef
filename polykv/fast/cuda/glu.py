"""glu (twin of `polykv.ref.glu`)."""

from __future__ import annotations

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
    y: F32 = output(out, shape)
    made = kernel("glu.cu", "glu", GLU_GATE=GATES[kind])
    arguments = (y, gate, check("up", up, np.float32, *shape), np.int64(gate.size))
    launch(made, (-(-gate.size // THREADS),), (THREADS,), arguments)
    return y
