"""Mean squares of every channel of queries, keys and values while a model reads a text.

The heads are computed beside the forward pass, by the operations that define it; what the model stores and answers is
not touched.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.model.loader import Model
from polykv.ops import Ops
from polykv.types import F32, Activations, Angles, AttentionWeights, QuantTensor

F64 = npt.NDArray[np.float64]


class ChannelSquares:
    """Sums of squares of the rows seen so far, by layer: float64 [G, D], query heads of one kv head added up.

    An observer of `polykv.model.transformer.Transformer`. Give it every row once, and none that is taken back later.
    """

    def __init__(self, ops: Ops, model: Model) -> None:
        self._ops, self._weights = ops, model.attention
        shapes = [(w.n_kv, w.head_dim) for w in model.attention]
        self.rows = 0
        self.q, self.k, self.v = ([np.zeros(s) for s in shapes] for _ in range(3))

    def __call__(self, layer: int, h: F32, angles: Angles) -> None:
        w = self._weights[layer]
        q, k, v = heads(self._ops, h, w, angles)
        self.rows += len(h) if layer == 0 else 0
        self.q[layer] += _squares(q).reshape(w.n_kv, -1, w.head_dim).sum(axis=1)
        self.k[layer] += _squares(k)
        self.v[layer] += _squares(v)

    def rms(self, layer: int) -> tuple[F64, F64, F64]:
        """Root mean squares of queries, keys and values, [G, D] each."""
        rows = max(self.rows, 1)
        share = self._weights[layer].n_heads // self._weights[layer].n_kv
        q, k, v = self.q[layer] / (rows * share), self.k[layer] / rows, self.v[layer] / rows
        return np.sqrt(q), np.sqrt(k), np.sqrt(v)

    def columns(self, layer: int) -> F64:
        """Lengths of the columns of Wo that each channel of a kv head meets, root mean square over its query heads."""
        w = self._weights[layer]
        squares = (self._ops.fetch(self._ops.dequantize(w.wo)).astype(np.float64) ** 2).sum(axis=0)
        lengths: F64 = np.sqrt(squares.reshape(w.n_kv, -1, w.head_dim).mean(axis=1))
        return lengths


def _squares(x: F32) -> F64:
    """Sums over the rows of x [R, n, D]: [n, D]."""
    return np.asarray((x.astype(np.float64) ** 2).sum(axis=0))


def heads(ops: Ops, h: F32, w: AttentionWeights, angles: Angles) -> tuple[F32, F32, F32]:
    """Queries [R, H, D], keys and values [R, G, D] of rows h [R, E], as attention uses them, without any equalizer."""
    m = ops.rms_norm(h, w.norm, w.eps)

    def project(matrix: QuantTensor, bias: F32 | None, n: int) -> F32:
        x = ops.fetch(ops.linear(m, matrix, activations=Activations.F32))
        return (x if bias is None else x + bias).reshape(len(h), n, w.head_dim)

    def turn(x: F32, norm: F32 | None) -> F32:
        return ops.fetch(ops.rope(x if norm is None else ops.rms_norm(x, norm, w.eps), angles))

    q, k = project(w.wq, w.q_bias, w.n_heads), project(w.wk, w.k_bias, w.n_kv)
    return turn(q, w.q_norm), turn(k, w.k_norm), project(w.wv, w.v_bias, w.n_kv)
