"""What is compared (arms), and what all of them share (a setting)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from polykv import ops as operations
from polykv.cache.calibration import Calibration
from polykv.cache.codecs.trellis import with_codebooks
from polykv.cache.group import Stage, exact_from, make_groups
from polykv.cache.identity import Identity
from polykv.cache.support import cache_config
from polykv.catalogue import resolve
from polykv.config import CacheConfig, ModelConfig, Tier
from polykv.counted import counted
from polykv.errors import ConfigError
from polykv.model.key_bias import asked_tiers, protect_keys
from polykv.model.loader import Model, load_model
from polykv.model.support import check_model
from polykv.ops import LoadedOps
from polykv.types import Activations, Codec, Family


@dataclass(frozen=True)
class Setting:
    """A model on a backend. decode: predictions that are compared come from steps of one token."""

    model: Model
    ops: LoadedOps
    activations: Activations = Activations.F32
    decode: bool = False


@dataclass(frozen=True, eq=False)
class Arm:
    """One way to store K and V: a name for people, the types of every layer, factors of its channels."""

    name: str
    tiers: tuple[Tier, ...]
    calibration: Calibration = field(default_factory=Calibration)


def open_setting(
    model: str, *, backend: str = "cpu", activations: Activations = Activations.F32, ctx: int, decode: bool = False
) -> Setting:
    """Open a model for sequences of `ctx` tokens.

    Raises ConfigError for a context beyond the model's, and whatever opening a model raises.
    """
    ops, loaded = operations.load(backend), load_model(resolve(model))
    limit = loaded.config.context
    if not 2 <= ctx <= limit:
        raise ConfigError(f"sequences of {counted(ctx, 'token')} are outside 2..{limit:,}, the range of this model")
    return Setting(loaded.for_context(ctx), ops, activations, decode)


def make_arm(
    setting: Setting, kv: str, *, codebooks: Iterable[str | Path] = (), calibration: Calibration | None = None
) -> Arm:
    """The arm that a text as of `--kv` names, `auto` included.

    Raises ConfigError for an unknown type or a calibration of another model, UnsupportedError when the backend does not
    run it.
    """
    config = setting.model.config
    asked, free = asked_tiers(kv, len(config.layers))
    asked = with_codebooks(asked, list(codebooks))
    check_model(setting.ops, setting.model, cache_config(setting.ops, asked))
    tiers, _ = protect_keys(setting.ops, setting.model, asked, free, setting.ops.preferred_block())
    factors = Calibration() if calibration is None else calibration
    factors.equalizers(config)
    return Arm(kv, tiers, factors)


def cache_identity(setting: Setting, arm: Arm) -> str:
    """Equal for arms that store the same of a model in the same way, whatever their names."""
    own = Identity.of(setting.model.config, cache_config(setting.ops, arm.tiers), setting.model.fingerprint)
    return replace(own, calibration=arm.calibration.identity()).hash_seed().hex()


def reads_codes(model: ModelConfig, arm: Arm, position: int) -> bool:
    """Whether a query at `position`, or one before it, reads cells that are coded: types with exact cells code whole
    units only. True of exact types."""
    groups = [
        g
        for g in make_groups(model, arm.tiers, CacheConfig.block_size)
        if g.stage is not Stage.EXACT and any(c.bits < 16 for i in g.layers for c in (arm.tiers[i].k, arm.tiers[i].v))
    ]
    return not groups or any(
        g.stage is Stage.WHOLE or exact_from(position, g.recent) > max(g.sink, g.first_cell(position)) for g in groups
    )


def never_coded(model: ModelConfig, arms: Iterable[Arm], tokens: int) -> list[str]:
    """Reasons against figures of arms that keep `tokens` tokens exact."""
    within = counted(tokens, "token")
    return [
        f"{arm.name} codes nothing within {within}, all of it is exact: such figures say nothing about it"
        for arm in arms
        if not reads_codes(model, arm, tokens - 1)
    ]


def takes_codebooks(kv: str, layers: int) -> bool:
    """Whether a text as of `--kv` names a trellis type, in any layer."""
    return any(c.family == Family.TRELLIS for c in _codecs(kv, layers))


def takes_factors(kv: str, layers: int) -> bool:
    """Whether it names a compressed type: exact ones have no use for a calibration."""
    return any(c.bits < 16 for c in _codecs(kv, layers))


def _codecs(kv: str, layers: int) -> list[Codec]:
    tiers, _ = asked_tiers(kv, layers)
    return [c for t in tiers for c in (t.k, t.v)]
