"""mlp_block (twin of `polykv.ref.composites.mlp_block`), as a composition."""

from __future__ import annotations

import numpy as np

from polykv.fast.cuda.arrays import check
from polykv.fast.cuda.glu import glu
from polykv.fast.cuda.linear import linear
from polykv.fast.cuda.norm import rms_norm
from polykv.types import F32, Activations, MlpWeights


def mlp_block(h: F32, w: MlpWeights, *, activations: Activations) -> None:
    """Add the MLP branch to h [R, E] in place."""
    m = rms_norm(check("h", h, np.float32, -1, -1), w.norm, w.eps)
    gate, up = (linear(m, matrix, activations=activations) for matrix in (w.gate, w.up))
    y = linear(glu(gate, up, w.glu, out=gate), w.down, activations=activations)
    h += y if w.post_norm is None else rms_norm(y, w.post_norm, w.eps)
