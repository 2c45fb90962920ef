"""Gated activations silu(g)*u and gelu_tanh(g)*u (twin of `polykv.ref.glu`; GLU variants, arXiv 2002.05202)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import addr, lane_f, load_f, splat_f, store_f
from polykv.fast.cpu.simd_math import fma, mul_f, sigmoid_f
from polykv.results import result
from polykv.types import F32, Glu

GELU_A = np.float32(2.0 * math.sqrt(2.0 / math.pi))
GELU_B = np.float32(0.044715)


@kernel()
def _act(g: Any, gelu: bool) -> Any:
    """silu(g), or tanh-GELU in its equal form g * sigmoid(2 sqrt(2/pi) (g + 0.044715 g^3))."""
    if gelu:
        inner = fma(mul_f(mul_f(g, g), g), splat_f(GELU_B), g)
        return mul_f(g, sigmoid_f(mul_f(inner, splat_f(GELU_A))))
    return mul_f(g, sigmoid_f(g))


@kernel()
def glu_row(gate: Any, up: Any, gelu: bool, out: Any) -> None:
    """out [F] = act(gate) * up; `out` may be either input."""
    n = gate.shape[0]
    pg, pu, po = addr(gate), addr(up), addr(out)
    whole = n // 8 * 8
    for i in range(0, 4 * whole, 32):
        store_f(po + i, mul_f(_act(load_f(pg + i), gelu), load_f(pu + i)))
    for i in range(whole, n):
        out[i] = lane_f(_act(splat_f(gate[i]), gelu), np.int32(0)) * up[i]


@kernel()
def _rows(gate: Any, up: Any, gelu: bool, out: Any) -> None:
    for r in range(gate.shape[0]):
        glu_row(gate[r], up[r], gelu, out[r])


def glu(gate: F32, up: F32, kind: Glu, *, out: F32 | None = None) -> F32:
    """act(gate) * up, [R, F]."""
    out = result(out, gate.shape)
    _rows(np.ascontiguousarray(gate), np.ascontiguousarray(up), kind == Glu.GELU_TANH, out)
    return out
