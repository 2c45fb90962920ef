"""Frozen descriptions of a model and of a cache. Made once, checked at construction, read everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from polykv.types import Codec, Glu


class RopeScaling(Enum):
    """Frequency scaling rules (docs/MODELS.md)."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"  # from config keys; GGUF files carry it as `freq_factors` instead
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, eq=False)
class RopeConfig:
    """Everything that decides the rope angles of a layer."""

    base: float
    n_rot: int
    interleaved: bool
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attn_factor: float | None = None  # yarn, longrope: magnitude scale; None = the rule's own
    freq_factors: npt.NDArray[np.float32] | None = None  # divisors of inv_freq [n_rot/2]
    long_factors: npt.NDArray[np.float32] | None = None  # longrope beyond original_context

    def identity(self) -> str:
        """A string that is equal exactly when the angles are; part of every cache fingerprint."""
        parts: list[object] = [
            self.base,
            self.n_rot,
            self.interleaved,
            self.scaling.value,
            self.factor,
            self.original_context,
        ]
        parts += [self.low_freq_factor, self.high_freq_factor, self.beta_fast, self.beta_slow, self.attn_factor]
        for a in (self.freq_factors, self.long_factors):
            parts.append("" if a is None else a.astype("<f4").tobytes().hex())
        return "|".join(map(str, parts))


class Mixer(Enum):
    """What mixes tokens in a layer."""

    FULL = "full"
    SLIDING = "sliding"


@dataclass(frozen=True, eq=False)
class LayerConfig:
    """One layer. head_dim, n_kv and everything else may differ from layer to layer."""

    mixer: Mixer
    n_heads: int
    n_kv: int
    head_dim: int
    ffn: int
    rope: RopeConfig
    scale: float
    window: int = 0  # keys seen including self; 0 for FULL
    softcap: float = 0.0
    qk_norm: bool = False
    post_norms: bool = False
    qkv_bias: bool = False
    glu: Glu = Glu.SILU


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """A model as data; `model/transformer.py` interprets it."""

    arch: str
    name: str
    embd: int
    vocab: int
    context: int
    eps: float
    layers: tuple[LayerConfig, ...]
    embed_scale: float = 1.0
    final_softcap: float = 0.0
    tied_head: bool = False


@dataclass(frozen=True)
class Tier:
    """A K codec and a V codec; `str(tier)` is the name used everywhere, e.g. `q8_0/turbo3` or `turbo4+c/turbo3,sink=4`.

    sink: so many first positions of a sequence stay exact. recent: so many last ones are, at least. docs/CENTERED.md.
    """

    k: Codec
    v: Codec
    sink: int = 0
    recent: int = 0

    @property
    def staged(self) -> bool:
        """Whether cells are exact first and coded in whole units later."""
        return self.k.centered or self.sink > 0 or self.recent > 0

    def __str__(self) -> str:
        options = (("sink", self.sink), ("recent", self.recent))
        return f"{self.k.name}/{self.v.name}" + "".join(f",{name}={n}" for name, n in options if n)


@dataclass(frozen=True)
class CacheConfig:
    """How K/V is stored: one tier per layer, block size in tokens (a multiple of 8).

    Every agent copies the partly filled last block of a shared document, so small blocks share better: 8 agents with 30
    tokens each on a document of 874 hold 6.4 times fewer cells in blocks of 8 than separate caches would, 5.3 times in
    blocks of 32, 4.0 in blocks of 64. Attention sums in units of 64 positions whatever the block size.
    """

    tiers: tuple[Tier, ...]
    block_size: int = 8
