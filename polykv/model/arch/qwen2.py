"""qwen2 (Qwen2, Qwen2.5): the llama decoder with biases on q, k and v.

    h += Wo attend(rope(Wq n + bq), rope(Wk n + bk), Wv n + bv), n = norm(h)
    h += Wdown(silu(Wgate m) * Wup m),                           m = norm(h)

Pairs of rope are (i, i + n_rot/2). Published models have key biases that are many times larger than what Wk adds to
them, in the first and last layers above all; `polykv.model.key_bias` says what that means for stored keys.
"""

from __future__ import annotations

from polykv.config import LayerConfig, Mixer, ModelConfig
from polykv.model.arch import _decoder
from polykv.model.arch._meta import Meta

NAME = "qwen2"
attention, mlp = _decoder.attention, _decoder.mlp


def config(meta: Meta) -> ModelConfig:
    """`ModelConfig` from `qwen2.*` keys."""
    meta.refuse("attention.causal", "attention.scale", "expert_count", "logit_scale")
    meta.refuse("attn_logit_softcapping", "final_logit_softcapping")
    s = _decoder.sizes(meta)
    rope = meta.rope(s.head_dim, interleaved=False)

    def layer(i: int) -> LayerConfig:
        return LayerConfig(
            Mixer.FULL, s.n_heads[i], s.n_kv[i], s.head_dim, s.ffn[i], rope, scale=s.head_dim**-0.5, qkv_bias=True
        )

    return _decoder.model(meta, s, map(layer, range(s.n_layers)))
