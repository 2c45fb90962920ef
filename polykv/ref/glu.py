"""glu: the gated activation of the MLP.

    y = act(g) * u        silu(g) = g / (1 + exp(-g))
                          gelu_tanh(g) = g/2 * (1 + tanh(sqrt(2/pi) * (g + 0.044715 g^3)))

Source: Shazeer, "GLU variants improve transformer". Computed in float64, rounded once.
"""

from __future__ import annotations

import numpy as np

from polykv.ref.weights import give
from polykv.types import F32, Glu


def glu(gate: F32, up: F32, kind: Glu, *, out: F32 | None = None) -> F32:
    """act(gate) * up, [R, F].

    >>> glu(np.float32([[0.0, 1.0]]), np.float32([[5.0, 2.0]]), Glu.SILU).round(4)
    array([[0.    , 1.4621]], dtype=float32)
    """
    g = gate.astype(np.float64)
    if kind == Glu.SILU:
        # 1 / (1 + exp(-g)) = (1 + tanh(g / 2)) / 2, which cannot overflow.
        act = 0.5 * g * (1 + np.tanh(0.5 * g))
    else:
        act = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    return give((act * up).astype(np.float32), out)
