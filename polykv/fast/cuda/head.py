"""head (twin of `polykv.ref.composites.head`)."""

from __future__ import annotations

from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.linear import linear
from polykv.fast.cuda.norm import rms_norm
from polykv.types import F32, Activations, HeadWeights

THREADS = 256


def head(h: F32, w: HeadWeights, *, activations: Activations, out: F32 | None = None) -> F32:
    """Logits [R, V] = softcap(W norm(h)), softcap(l) = c tanh(l / c)."""
    y = linear(rms_norm(h, w.norm, w.eps), w.out, activations=activations, out=out)
    if w.softcap > 0:
        grid = (y.shape[0], -(-w.out.rows // THREADS))
        launch(kernel("softcap.cu", "softcap"), grid, (THREADS,), (y, w.out.rows, float(w.softcap)))
    return y
