"""head (twin of `polykv.ref.composites.head`)."""

from __future__ import annotations

from polykv.fast.cuda.arrays import output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.few_rows import residual
from polykv.fast.cuda.linear import few, linear
from polykv.fast.cuda.linear_int8 import product
from polykv.fast.cuda.norm import rms_norm
from polykv.fast.cuda.placed import joined
from polykv.fast.cuda.weights import FIELDS
from polykv.fast.cuda.workspace import Workspace
from polykv.types import F32, Activations, HeadWeights

THREADS = 256


def head(h: F32, w: HeadWeights, *, activations: Activations, out: F32 | None = None) -> F32:
    """Logits [R, V] = softcap(W norm(h)), softcap(l) = c tanh(l / c)."""
    if activations == Activations.Q8 and w.out.type in FIELDS and 0 < len(h) <= few(w.out):
        y: F32 = output(out, (len(h), w.out.rows))
        product(y, w.out, residual(h, None, w.norm, w.eps, joined(w.out), Workspace()))
    else:
        y = linear(rms_norm(h, w.norm, w.eps), w.out, activations=activations, out=out)
    if w.softcap > 0:
        grid = (y.shape[0], -(-w.out.rows // THREADS))
        launch(kernel("softcap.cu", "softcap"), grid, (THREADS,), (y, w.out.rows, float(w.softcap)))
    return y
