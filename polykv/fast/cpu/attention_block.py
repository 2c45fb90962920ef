"""h += post_norm(Wo attend(...)): one attention block (twin of `polykv.ref.composites`)."""

from __future__ import annotations

from polykv.fast.cpu.attend import attend
from polykv.fast.cpu.kv import kv_append
from polykv.fast.cpu.linear import linear
from polykv.fast.cpu.norm import rms_norm
from polykv.fast.cpu.rope import rope
from polykv.types import F32, Activations, Angles, AttentionWeights, LayerKV, Segments, Slots


def composed(
    h: F32,
    w: AttentionWeights,
    kv: LayerKV,
    angles: Angles,
    segments: Segments,
    slots: Slots,
    *,
    activations: Activations,
) -> None:
    """The block as a sequence of operations; for many rows, where each of them is long."""
    n = h.shape[0]
    m = rms_norm(h, w.norm, w.eps)
    q = linear(m, w.wq, activations=activations).reshape(n, w.n_heads, w.head_dim)
    k = linear(m, w.wk, activations=activations).reshape(n, w.n_kv, w.head_dim)
    v = linear(m, w.wv, activations=activations).reshape(n, w.n_kv, w.head_dim)
    if w.q_norm is not None:
        rms_norm(q, w.q_norm, w.eps, out=q)
    if w.k_norm is not None:
        rms_norm(k, w.k_norm, w.eps, out=k)
    kv_append(kv.k, rope(k, angles, out=k), slots)
    kv_append(kv.v, v, slots)
    o, _ = attend(rope(q, angles, out=q), segments, kv, scale=w.scale, window=w.window, softcap=w.softcap, out=q)
    y = linear(o.reshape(n, w.n_heads * w.head_dim), w.wo, activations=activations)
    h += y if w.post_norm is None else rms_norm(y, w.post_norm, w.eps, out=y)


attention_block = composed
