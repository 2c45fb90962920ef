"""The blocks of a transformer, as compositions of the elementary operations.

    attention    h += post(Wo attend(rope(qn(Wq m + bq)), cache + rope(kn(Wk m + bk)), Wv m + bv)),  m = rms_norm(h)
    mlp          h += post(Wdown glu(Wgate m, Wup m)),                                              m = rms_norm(h)

qn, kn, post (norms) and bq, bk, bv exist in some architectures. An equalizer multiplies what is stored by one factor a
channel, and queries and outputs by its inverse, so that products stay what they were. New keys and values are written
first, then attention reads only what is stored: a token sees even itself through the codec, so its result does not
depend on how a prompt is cut into steps. Where cells are exact first and coded in whole units (docs/CENTERED.md),
units that are complete are coded before anything is read, for the same reason. Source: docs/MODELS.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polykv.ref.attention import attend
from polykv.ref.glu import glu
from polykv.ref.linear import linear
from polykv.ref.norm import rms_norm
from polykv.ref.rope import rope
from polykv.ref.storage import kv_append, kv_seal
from polykv.ref.weights import dequantize, give
from polykv.types import (
    F32,
    I32,
    Activations,
    Angles,
    AttentionWeights,
    HeadWeights,
    LayerKV,
    MlpWeights,
    QuantTensor,
    Segments,
    Slots,
    Stack,
)


def embed(w: QuantTensor, ids: I32, scale: float) -> F32:
    """Rows `ids` of the embedding matrix times scale, [R, E]."""
    return dequantize(w, ids) * np.float32(scale)


def attention_block(
    h: F32,
    w: AttentionWeights,
    kv: LayerKV,
    angles: Angles,
    segments: Segments,
    slots: Slots,
    *,
    activations: Activations,
) -> None:
    """Add the attention branch to h [R, E] in place, after writing the rows' K and V to `slots`, and codes of the units
    that are complete then."""
    n = h.shape[0]
    m = rms_norm(h, w.norm, w.eps)
    q = _plus(linear(m, w.wq, activations=activations), w.q_bias).reshape(n, w.n_heads, w.head_dim)
    k = _plus(linear(m, w.wk, activations=activations), w.k_bias).reshape(n, w.n_kv, w.head_dim)
    v = _plus(linear(m, w.wv, activations=activations), w.v_bias).reshape(n, w.n_kv, w.head_dim)
    if w.q_norm is not None:
        q = rms_norm(q, w.q_norm, w.eps)
    if w.k_norm is not None:
        k = rms_norm(k, w.k_norm, w.eps)
    e, new = w.equalizer, kv if kv.exact is None else kv.exact
    kv_append(new.k, _times(rope(k, angles), e.k), slots)
    kv_append(new.v, _times(v, e.v), slots)
    if kv.exact is not None and slots.seals is not None:
        kv_seal(kv.k, kv.exact.k, slots.seals)
        kv_seal(kv.v, kv.exact.v, slots.seals)
    q = _times(rope(q, angles), e.q)
    o, _ = attend(q, segments, kv, scale=w.scale, window=w.window, softcap=w.softcap)
    o = _times(o, e.out)
    y = linear(o.reshape(n, w.n_heads * w.head_dim), w.wo, activations=activations)
    h += y if w.post_norm is None else rms_norm(y, w.post_norm, w.eps)


def _plus(x: F32, bias: F32 | None) -> F32:
    return x if bias is None else x + bias


def _times(x: F32, factors: F32 | None) -> F32:
    return x if factors is None else x * factors


def mlp_block(h: F32, w: MlpWeights, *, activations: Activations) -> None:
    """Add the MLP branch to h [R, E] in place."""
    m = rms_norm(h, w.norm, w.eps)
    gate = linear(m, w.gate, activations=activations)
    up = linear(m, w.up, activations=activations)
    y = linear(glu(gate, up, w.glu), w.down, activations=activations)
    h += y if w.post_norm is None else rms_norm(y, w.post_norm, w.eps)


def layers(
    h: F32,
    stack: Stack,
    angles: Sequence[Angles],
    segments: Sequence[Segments],
    slots: Sequence[Slots],
    *,
    activations: Activations,
) -> None:
    """Both blocks of all layers in order, h [R, E] in place."""
    for layer in stack.layers:
        g = layer.group
        attention_block(
            h, layer.attention, layer.kv, angles[layer.rope], segments[g], slots[g], activations=activations
        )
        mlp_block(h, layer.mlp, activations=activations)


def head(h: F32, w: HeadWeights, *, activations: Activations, out: F32 | None = None) -> F32:
    """Logits [R, V] = softcap(W norm(h)), softcap(l) = c tanh(l / c)."""
    y = linear(rms_norm(h, w.norm, w.eps), w.out, activations=activations)
    if w.softcap > 0:
        cap = np.float32(w.softcap)
        y = cap * np.tanh(y / cap)
    return give(y, out)
