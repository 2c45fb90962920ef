"""Whether a backend can run a model with a cache, asked before anything is allocated: weights and K/V."""

from __future__ import annotations

from collections import Counter

from polykv.cache.support import cache_config, kv_reasons, refusal
from polykv.config import CacheConfig
from polykv.model.loader import Model
from polykv.ops import BACKENDS, Limits, LoadedOps, load
from polykv.types import MatrixType


def reasons(limits: Limits, model: Model, cache: CacheConfig) -> list[str]:
    """Why the backend cannot run the model with this cache, one sentence per reason; empty = it can."""
    unusable = limits.unusable()
    if unusable is not None:
        return [unusable]
    found = [
        f"{n} matrices of type {kind.name}: {reason}"
        for kind, n in _matrix_types(model).items()
        if (reason := limits.supports_weight(kind)) is not None
    ]
    return found + kv_reasons(limits, model.config, cache.tiers, cache.block_size)


def check_model(ops: LoadedOps, model: Model, cache: CacheConfig) -> None:
    """Raise UnsupportedError with all `reasons`, and a backend that has none."""
    found = reasons(ops, model, cache)
    if found:
        others = [b for b in BACKENDS if not reasons(load(b), model, cache_config(load(b), cache.tiers))]
        raise refusal(ops.name, found, others)


def _matrix_types(model: Model) -> Counter[MatrixType]:
    """How many matrices there are of each type, embedding and head included."""
    lookup = [] if model.head.out is model.embedding else [model.embedding]
    return Counter(w.type for w in (*model.matrices, *lookup))
