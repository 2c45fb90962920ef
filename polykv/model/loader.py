"""From a GGUF file to a `Model`: configuration, packed weights, identity. No arithmetic, no copies of matrices."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polykv.config import ModelConfig
from polykv.errors import FormatError, UnsupportedError
from polykv.model.arch import ARCHS
from polykv.model.arch._meta import Meta
from polykv.model.gguf import GgufFile, read_gguf
from polykv.model.rope import for_context
from polykv.types import AttentionWeights, HeadWeights, MlpWeights, ModelWeights, QuantTensor

# Tables that old converters stored and that follow from the metadata.
_REDUNDANT = (".attn.rotary_emb.inv_freq", ".attn_rot_embd.weight", ".attn_rot_embd")


@dataclass(frozen=True, eq=False)
class Model:
    """A model as data: what it is and its weights, packed as the file has them.

    fingerprint: identity of the file (`GgufFile.fingerprint`). notes: remarks for reports, such as unused metadata.
    """

    config: ModelConfig
    embedding: QuantTensor
    attention: tuple[AttentionWeights, ...]
    mlp: tuple[MlpWeights, ...]
    head: HeadWeights
    gguf: GgufFile
    fingerprint: str
    notes: tuple[str, ...] = ()

    @property
    def matrices(self) -> tuple[QuantTensor, ...]:
        """Every matrix that rows are multiplied with: attention, MLP and head."""
        attention = [w for a in self.attention for w in (a.wq, a.wk, a.wv, a.wo)]
        mlp = [w for m in self.mlp for w in (m.gate, m.up, m.down)]
        return (*attention, *mlp, self.head.out)

    @property
    def weights(self) -> ModelWeights:
        """What the layers, the embedding and the head are computed with."""
        return ModelWeights(self.embedding, self.attention, self.mlp, self.head)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors of the file (a tied head counts once)."""
        return sum(t.nbytes for t in self.gguf.tensors.values())

    def for_context(self, context: int) -> Model:
        """The model for sessions of up to `context` tokens, the same weights: longrope has frequencies for short and
        for long sessions (`polykv.model.rope.for_context`)."""
        layers = tuple(replace(layer, rope=for_context(layer.rope, context)) for layer in self.config.layers)
        return replace(self, config=replace(self.config, layers=layers))


def load_model(path: str | Path) -> Model:
    """Open, check and map a model file.

    Raises FormatError for malformed or contradictory files, UnsupportedError for architectures, tensors and settings
    that this build does not run.
    """
    gguf = read_gguf(path)
    arch = gguf.metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise FormatError(gguf.path, "general.architecture", "the key is missing or no string")
    if arch not in ARCHS:
        raise UnsupportedError(
            f"{gguf.path}: architecture {reprlib.repr(arch)} is not supported; known are {', '.join(ARCHS)}"
        )
    module, meta = ARCHS[arch], Meta(gguf, arch)
    config = module.config(meta)
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sequence) and len(tokens) != config.vocab:
        rows = f"{len(tokens)} tokens, but token_embd.weight has {config.vocab} rows"
        raise FormatError(gguf.path, "tokenizer.ggml.tokens", rows)
    embedding = meta.matrix("token_embd.weight", config.vocab, config.embd)
    out = embedding if config.tied_head else meta.matrix("output.weight", config.vocab, config.embd)
    norm = meta.vector("output_norm.weight", config.embd)
    layers = list(enumerate(config.layers))
    attention = tuple(module.attention(meta, i, config, layer) for i, layer in layers)
    mlp = tuple(module.mlp(meta, i, config, layer) for i, layer in layers)
    notes = (*gguf.notes, *_unused(meta))
    head = HeadWeights(norm, out, config.final_softcap, config.eps)
    return Model(config, embedding, attention, mlp, head, gguf, gguf.fingerprint(), notes)


def _unused(meta: Meta) -> list[str]:
    """Refuse tensors that nothing reads (leaving one out changes the model); report keys that nothing reads."""
    gguf = meta.gguf
    extra = [n for n in gguf.tensors if n not in meta.used]
    unknown = [n for n in extra if not n.endswith(_REDUNDANT)]
    if unknown:
        names = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        raise UnsupportedError(f"{gguf.path}: {meta.arch} here has no use for {names}; the result would be wrong")
    keys = [k for k in gguf.metadata if k.startswith(f"{meta.arch}.") and k not in meta.used]
    return [f"metadata key {k} is not used" for k in keys] + [f"tensor {n} is redundant and not used" for n in extra]
