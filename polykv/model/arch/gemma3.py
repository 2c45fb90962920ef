"""gemma3 (text): sliding-window layers with a global one every sixth, norms before and after each block, GeGLU.

    h = sqrt(E) * embed(t)
    h += post_norm(Wo attend(rope(norm(q)), rope(norm(k)), v)),  q, k, v of norm(h)
    h += post_norm(Wdown(gelu_tanh(Wgate m) * Wup m)),           m = norm(h)

Layer i slides unless (i + 1) is a multiple of the pattern. Sliding layers have their own rope base and never a scaling;
the linear factor of the larger models belongs to the global layers alone. Pairs are (i, i + n_rot/2). GGUF files hold
norm weights with the 1 already added. The query scale is head_dim^-1/2, but (E / heads)^-1/2 in the 27B model, which no
key says: llama.cpp knows it by its 62 layers, and so do we.
"""

from __future__ import annotations

import math

import numpy as np

from polykv.config import LayerConfig, Mixer, ModelConfig, RopeConfig
from polykv.model.arch import _decoder
from polykv.model.arch._meta import Meta
from polykv.types import Glu

NAME = "gemma3"
LAYERS_27B = 62
attention, mlp = _decoder.attention, _decoder.mlp


def config(meta: Meta) -> ModelConfig:
    """`ModelConfig` from `gemma3.*` keys."""
    meta.refuse("attention.causal", "attention.scale", "logit_scale", "expert_count")
    s = _decoder.sizes(meta)
    window = meta.integer("attention.sliding_window", most=1 << 30)
    full = meta.rope(s.head_dim, interleaved=False)
    base = meta.number("rope.freq_base_swa", 10000.0, above=1.0)
    sliding = RopeConfig(base, full.n_rot, interleaved=False, freq_factors=None)
    width = s.embd // s.n_heads[0] if s.n_layers == LAYERS_27B else s.head_dim
    softcap = _softcap(meta, "attn_logit_softcapping")

    def layer(i: int, slides: bool) -> LayerConfig:
        return LayerConfig(
            Mixer.SLIDING if slides else Mixer.FULL,
            s.n_heads[i],
            s.n_kv[i],
            s.head_dim,
            s.ffn[i],
            sliding if slides else full,
            scale=width**-0.5,
            window=window if slides else 0,
            softcap=softcap,
            qk_norm=True,
            post_norms=True,
            glu=Glu.GELU_TANH,
        )

    return _decoder.model(
        meta,
        s,
        (layer(i, slides) for i, slides in enumerate(_pattern(meta, s.n_layers))),
        # Rounded to float32, as the reference implementations hold it.
        embed_scale=float(np.float32(math.sqrt(s.embd))),
        final_softcap=_softcap(meta, "final_logit_softcapping"),
    )


def _softcap(meta: Meta, key: str) -> float:
    """Positive when the key is there; 0 (none) when it is not."""
    return 0.0 if meta.get(key) is None else meta.number(key)


def _pattern(meta: Meta, n: int) -> list[bool]:
    """Which layers slide: from a period (default 6) or from one flag per layer."""
    key = "attention.sliding_window_pattern"
    value = meta.get(key)
    if not isinstance(value, np.ndarray):
        period = meta.integer(key, 6, most=1 << 16)
        return [(i + 1) % period != 0 for i in range(n)]
    if len(value) != n or value.dtype.kind == "f" or any(v not in (0, 1) for v in value.tolist()):
        raise meta.fail(key, f"expected one flag for each of {n} layers, found {len(value)} of type {value.dtype}")
    return [bool(v) for v in value]
