"""What every decoder of the llama line has in common: sizes, attention and MLP tensors.

GGUF names (layer N):  blk.N.attn_norm, attn_q, attn_k, attn_v (or attn_qkv with rows q|k|v), attn_output,
                       ffn_norm, ffn_gate, ffn_up, ffn_down;  each with the suffix .weight
                       attn_q, attn_k, attn_v also with .bias where the layer has biases
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polykv.config import LayerConfig, ModelConfig
from polykv.errors import FormatError, UnsupportedError
from polykv.model.arch._meta import MAX_LAYERS, Meta
from polykv.types import F32, AttentionWeights, MlpWeights, QuantTensor


@dataclass(frozen=True)
class Sizes:
    """Numbers of a model that its layers are made from."""

    embd: int
    context: int
    vocab: int
    eps: float
    head_dim: int
    n_heads: list[int]
    n_kv: list[int]
    ffn: list[int]

    @property
    def n_layers(self) -> int:
        return len(self.ffn)


def sizes(meta: Meta) -> Sizes:
    """Read and cross-check the sizes. Vocabulary: rows of `token_embd.weight`, which other keys may only confirm."""
    path = meta.gguf.path
    embd = meta.integer("embedding_length")
    n = meta.integer("block_count", most=MAX_LAYERS)
    n_heads = meta.integers("attention.head_count", n, most=1 << 16)
    grouped = meta.get("attention.head_count_kv") is not None
    n_kv = meta.integers("attention.head_count_kv", n, most=1 << 16) if grouped else n_heads
    for i, (h, g) in enumerate(zip(n_heads, n_kv, strict=True)):
        if h % g:
            raise meta.fail("attention.head_count_kv", f"{g} kv heads do not divide {h} query heads (layer {i})")
    head_dim = meta.integer("attention.key_length", _default_head_dim(meta, embd, n_heads), most=1 << 14)
    value_dim = meta.integer("attention.value_length", head_dim, most=1 << 14)
    if value_dim != head_dim:
        raise UnsupportedError(
            f"{path}: keys of {head_dim} and values of {value_dim} dims; this build needs them equal"
        )
    shape = meta.gguf.info("token_embd.weight").shape
    if len(shape) != 2 or shape[1] != embd:
        raise FormatError(path, "token_embd.weight", f"has shape {list(shape)}, the metadata says [vocabulary, {embd}]")
    vocab = meta.integer("vocab_size", shape[0])
    if vocab != shape[0]:
        raise meta.fail("vocab_size", f"{vocab} differs from the {shape[0]} rows of token_embd.weight")
    return Sizes(
        embd=embd,
        context=meta.integer("context_length", most=1 << 40),
        vocab=vocab,
        eps=meta.number("attention.layer_norm_rms_epsilon", most=1.0),
        head_dim=head_dim,
        n_heads=n_heads,
        n_kv=n_kv,
        ffn=meta.integers("feed_forward_length", n),
    )


def model(meta: Meta, sizes: Sizes, layers: Iterable[LayerConfig], **more: float) -> ModelConfig:
    """The configuration of these layers; without `output.weight` the head is tied. more: other fields."""
    return ModelConfig(
        meta.arch,
        meta.name(),
        sizes.embd,
        sizes.vocab,
        sizes.context,
        sizes.eps,
        tuple(layers),
        tied_head=not meta.has("output.weight"),
        **more,
    )


def _default_head_dim(meta: Meta, embd: int, n_heads: list[int]) -> int | None:
    """embd / heads when that is a whole number, else None: the key is then required."""
    return embd // n_heads[0] if embd % n_heads[0] == 0 else None


def attention(meta: Meta, i: int, model: ModelConfig, layer: LayerConfig) -> AttentionWeights:
    """Attention weights of layer i; norms on q and k and after the block, and biases, when the layer has them."""
    blk, e, d = f"blk.{i}", model.embd, layer.head_dim
    wq, wk, wv = _qkv(meta, blk, layer.n_heads * d, layer.n_kv * d, e)

    def norm(name: str, n: int, present: bool) -> F32 | None:
        return meta.vector(f"{blk}.{name}.weight", n) if present else None

    def bias(name: str, heads: int) -> F32 | None:
        return meta.vector(f"{blk}.{name}.bias", heads * d) if layer.qkv_bias else None

    return AttentionWeights(
        norm=meta.vector(f"{blk}.attn_norm.weight", e),
        wq=wq,
        wk=wk,
        wv=wv,
        wo=meta.matrix(f"{blk}.attn_output.weight", e, layer.n_heads * d),
        q_norm=norm("attn_q_norm", d, layer.qk_norm),
        k_norm=norm("attn_k_norm", d, layer.qk_norm),
        post_norm=norm("post_attention_norm", e, layer.post_norms),
        n_heads=layer.n_heads,
        n_kv=layer.n_kv,
        head_dim=d,
        scale=layer.scale,
        window=layer.window,
        softcap=layer.softcap,
        eps=model.eps,
        q_bias=bias("attn_q", layer.n_heads),
        k_bias=bias("attn_k", layer.n_kv),
        v_bias=bias("attn_v", layer.n_kv),
    )


def _qkv(meta: Meta, blk: str, nq: int, nk: int, e: int) -> tuple[QuantTensor, QuantTensor, QuantTensor]:
    fused = f"{blk}.attn_qkv.weight"
    if not meta.has(fused):
        q, k, v = (f"{blk}.attn_{x}.weight" for x in "qkv")
        return meta.matrix(q, nq, e), meta.matrix(k, nk, e), meta.matrix(v, nk, e)
    w = meta.matrix(fused, nq + 2 * nk, e)

    def rows(start: int, n: int) -> QuantTensor:
        return QuantTensor(w.type, w.data[start : start + n], w.cols)

    return rows(0, nq), rows(nq, nk), rows(nq + nk, nk)


def mlp(meta: Meta, i: int, model: ModelConfig, layer: LayerConfig) -> MlpWeights:
    """Gated MLP of layer i."""
    blk, e, f = f"blk.{i}", model.embd, layer.ffn
    return MlpWeights(
        norm=meta.vector(f"{blk}.ffn_norm.weight", e),
        gate=meta.matrix(f"{blk}.ffn_gate.weight", f, e),
        up=meta.matrix(f"{blk}.ffn_up.weight", f, e),
        down=meta.matrix(f"{blk}.ffn_down.weight", e, f),
        post_norm=meta.vector(f"{blk}.post_ffw_norm.weight", e) if layer.post_norms else None,
        glu=layer.glu,
        eps=model.eps,
    )
