"""Whether a backend can hold the K/V of a model, asked before anything is allocated."""

from __future__ import annotations

from polykv.config import CacheConfig, ModelConfig, Tier
from polykv.errors import UnsupportedError
from polykv.ops import BACKENDS, Limits, LoadedOps, load
from polykv.types import UNIT


def cache_config(limits: Limits, tiers: tuple[Tier, ...]) -> CacheConfig:
    """A cache of these tiers in blocks as the backend likes them."""
    return CacheConfig(tiers, limits.preferred_block())


def whole_cells(limits: Limits, context: int, sequences: int) -> int:
    """Cells of a cache that holds so many sequences of `context` tokens, each in blocks of its own."""
    block = limits.preferred_block()
    return sequences * -(-context // block) * block


def kv_reasons(limits: Limits, model: ModelConfig, tiers: tuple[Tier, ...], block_size: int) -> list[str]:
    """Why the backend cannot hold the K/V of this model in these tiers, one sentence per reason; empty = it can."""
    unusable = limits.unusable()
    if unusable is not None:
        return [unusable]
    layers: dict[str, list[int]] = {}
    for i, (layer, tier) in enumerate(zip(model.layers, tiers, strict=True)):
        reason = limits.supports_kv(tier.k, tier.v, layer.head_dim, UNIT if tier.staged else block_size)
        if reason is None and tier.staged:
            reason = limits.supports_stages()
        if reason is not None:
            layers.setdefault(f"K/V as {tier} with head_dim {layer.head_dim}: {reason}", []).append(i)
    return [f"{reason} ({_where(found, len(model.layers))})" for reason, found in layers.items()]


def check_kv(ops: LoadedOps, model: ModelConfig, tiers: tuple[Tier, ...], block_size: int) -> None:
    """Raise UnsupportedError with all `kv_reasons`, and the backends that have none."""
    reasons = kv_reasons(ops, model, tiers, block_size)
    if reasons:
        others = [b for b in BACKENDS if not kv_reasons(load(b), model, tiers, load(b).preferred_block())]
        raise refusal(ops.name, reasons, others)


def check_usable(ops: LoadedOps) -> None:
    """Raise UnsupportedError when nothing runs on this machine with the backend."""
    reason = ops.unusable()
    if reason is not None:
        raise refusal(ops.name, [reason], [b for b in BACKENDS if load(b).unusable() is None])


def refusal(name: str, reasons: list[str], others: list[str]) -> UnsupportedError:
    """The error of a backend that cannot run something; others: backends that can."""
    best = next((b for b in ("cpu", "cuda", "ref") if b in others), None)
    advice = "no backend runs it" if best is None else f"--backend {best} (backend={best!r}) runs it"
    return UnsupportedError(f"the backend {name} cannot run this: {'; '.join(reasons)}; {advice}")


def _where(layers: list[int], n: int) -> str:
    if len(layers) == n:
        return "all layers"
    return f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} of {n} layers, first {layers[0]}"
