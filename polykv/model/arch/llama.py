"""llama (Llama 2 and 3, SmolLM2, Mistral 7B): pre-norm decoder, grouped-query attention, SwiGLU.

    h += Wo attend(rope(Wq n), rope(Wk n), Wv n), n = norm(h);   h += Wdown(silu(Wgate m) * Wup m), m = norm(h)

GGUF stores the rows of Wq and Wk permuted so that rope rotates neighbours: pairs (2i, 2i+1), interleaved.
Llama 3.1 scaling comes as the tensor `rope_freqs.weight`, without scaling keys.
"""

from __future__ import annotations

from polykv.config import LayerConfig, Mixer, ModelConfig
from polykv.model.arch import _decoder
from polykv.model.arch._meta import Meta

NAME = "llama"
attention, mlp = _decoder.attention, _decoder.mlp


def config(meta: Meta) -> ModelConfig:
    """`ModelConfig` from `llama.*` keys."""
    meta.refuse("expert_count", "expert_used_count", "attention.clamp_kqv", "attention.max_alibi_bias")
    meta.refuse("logit_scale", "residual_scale", "embedding_scale", "attention.scale", "attention.sliding_window")
    meta.refuse("attn_logit_softcapping", "final_logit_softcapping", "use_parallel_residual")
    s = _decoder.sizes(meta)
    rope = meta.rope(s.head_dim, interleaved=True)
    return _decoder.model(
        meta,
        s,
        (
            LayerConfig(Mixer.FULL, s.n_heads[i], s.n_kv[i], s.head_dim, s.ffn[i], rope, scale=s.head_dim**-0.5)
            for i in range(s.n_layers)
        ),
    )
