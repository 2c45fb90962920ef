"""One file per architecture: GGUF metadata to `ModelConfig`, tensor names to weights. Nothing computes here.

Adding one: a module with `NAME`, `config`, `attention` and `mlp` as in `llama.py`, one entry in `ARCHS`, a tiny golden
model under tests/golden/models and its name in tests/tiny_models.py.
"""

from __future__ import annotations

from typing import Protocol

from polykv.config import LayerConfig, ModelConfig
from polykv.model.arch import gemma3, llama, qwen2
from polykv.model.arch._meta import Meta
from polykv.types import AttentionWeights, MlpWeights


class ArchModule(Protocol):
    """What a module of this package offers."""

    NAME: str

    def config(self, meta: Meta) -> ModelConfig:
        """Read and check the metadata; raises FormatError or UnsupportedError."""
        ...

    def attention(self, meta: Meta, i: int, model: ModelConfig, layer: LayerConfig) -> AttentionWeights:
        """Attention weights of layer i, shapes checked."""
        ...

    def mlp(self, meta: Meta, i: int, model: ModelConfig, layer: LayerConfig) -> MlpWeights:
        """MLP weights of layer i, shapes checked."""
        ...


ARCHS: dict[str, ArchModule] = {"llama": llama, "qwen2": qwen2, "gemma3": gemma3}
