"""How far a model's predictions move when its K/V is compressed.

    KL(p || q) = sum_i p_i (log p_i - log q_i), in nats

p is the next-token distribution with K and V as `truth`, q with a pair of types, at every position of a text that is
read through the cache, so that every token sees its own key compressed. "Same top": how often both have the same
likeliest token. Activations are float32: nothing but the cache differs. Bytes are those of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polykv.cache.calibration import Calibration
from polykv.cache.codecs import parse_tiers
from polykv.cache.group import Stage
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config
from polykv.model.loader import Model
from polykv.model.runner import Logits, Runner
from polykv.ops import LoadedOps
from polykv.types import F32, Activations

# Rows of logits that are held at a time: 32 MB each for a vocabulary of 262,144.
CHUNK = 32


@dataclass(frozen=True, eq=False)
class Quality:
    """One pair on one text. bytes_per_token: codes of K and V of all layers. held: bytes of all blocks at the end,
    exact cells included. kl, same: float64 and bool [T], by position."""

    bytes_per_token: float
    kl: npt.NDArray[np.float64]
    same: npt.NDArray[np.bool_]
    held: int = 0

    @property
    def kl_mean(self) -> float:
        return float(self.kl.mean())

    @property
    def kl_p99(self) -> float:
        return float(np.quantile(self.kl, 0.99))

    @property
    def same_top(self) -> float:
        return float(self.same.mean())


def compare(
    model: Model,
    ids: list[int],
    pairs: list[str],
    *,
    ops: LoadedOps,
    truth: str,
    calibration: Calibration | None = None,
    skip: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Quality]:
    """Quality of every pair (as in --kv), against `truth`. calibration: factors that all pairs but the truth are stored
    with. skip: positions at the beginning that do not count. on_progress(done, total) counts tokens of all runs.

    Raises UnsupportedError when the backend does not run a pair.
    """
    sides = {kv: Sequence(empty_pool(model, kv, len(ids), ops)) for kv in dict.fromkeys([truth, *pairs])}
    for kv in sides:
        if calibration is not None and kv != truth:
            sides[kv].pool.equalize(calibration)
    runners = {kv: Runner(ops, model, s.pool, Activations.F32) for kv, s in sides.items()}
    kl: dict[str, list[np.ndarray]] = {kv: [] for kv in pairs}
    same: dict[str, list[np.ndarray]] = {kv: [] for kv in pairs}
    done, total = 0, len(ids) * len(sides)
    for at in range(0, len(ids), CHUNK):
        part = ids[at : at + CHUNK]
        wanted = log_softmax(runners[truth].step([(sides[truth], part)], Logits.ALL))
        weights, top = np.exp(wanted), wanted.argmax(axis=1)
        for kv in sides:
            if kv in kl:
                # The truth is a pair like others when it is asked for; its second run would give equal bits.
                mine = wanted if kv == truth else log_softmax(runners[kv].step([(sides[kv], part)], Logits.ALL))
                kl[kv].append(divergence(wanted, mine, weights))
                same[kv].append(top == mine.argmax(axis=1))
            done += len(part)
            if on_progress:
                on_progress(done, total)
    return {
        kv: Quality(
            bytes_per_token(sides[kv].pool),
            np.concatenate(kl[kv])[skip:],
            np.concatenate(same[kv])[skip:],
            sides[kv].pool.used_nbytes,
        )
        for kv in pairs
    }


def empty_pool(model: Model, kv: str, tokens: int, ops: LoadedOps) -> KVPool:
    """An empty cache of one pair of types."""
    config = cache_config(ops, parse_tiers(kv, len(model.config.layers)))
    return KVPool(ops, model.config, config, fingerprint=model.fingerprint, max_tokens=tokens)


def bytes_per_token(cache: KVPool) -> float:
    """Of K and V of all layers as they are coded, from one block of the arrays."""
    return sum(cache.block_nbytes(g.index) / g.size for g in cache.groups if g.stage is not Stage.EXACT)


def log_softmax(logits: F32) -> F32:
    """log p of every row of logits; sums in float64."""
    y = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(y).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(y - np.log(total).astype(np.float32), np.float32)


def divergence(p: F32, q: F32, weights: F32 | None = None) -> npt.NDArray[np.float64]:
    """KL(p || q) of every row, from log-probabilities; sums in float64. Rounding may leave a few 1e-7, also below 0.

    weights: exp(p), for callers that have it.

    >>> p = np.log(np.array([[0.5, 0.5]], np.float32))
    >>> round(float(divergence(p, np.log(np.array([[0.25, 0.75]], np.float32)))[0]), 4)
    0.1438
    """
    return np.asarray(((np.exp(p) if weights is None else weights) * (p - q)).sum(axis=1, dtype=np.float64))
