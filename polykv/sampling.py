"""How the next token is chosen, and where its random number comes from.

The number for token i of a sequence is a function of (seed, i) alone: a counter-based generator (Philox; Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011) keyed by the seed, with the token index as the counter. So the
other sequences of a batch, the order of requests, and interruptions never change what a sequence says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np

from polykv.errors import ConfigError
from polykv.ops import Ops
from polykv.types import F32, I32


@dataclass(frozen=True)
class SamplingParams:
    """Rules for choosing tokens; the order in which they apply is that of `Ops.sample`.

    temperature: 0 = the most likely token. top_k: 0 = off. top_p: 1 = off. min_p: 0 = off.
    repetition_penalty: 1 = off; applies to the ids among the last `penalty_window` tokens, prompt included.
    seed: any integer >= 0 below 2^64.

    Raises ConfigError for values outside their range, NaN included.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_window: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _whole("top_k", self.top_k, 2**31)
        _whole("penalty_window", self.penalty_window, 2**31)
        _whole("seed", self.seed, 2**64)

    @property
    def greedy(self) -> bool:
        """Whether the token is that with the largest logit of the model."""
        return self.temperature == 0 and not self.penalizes

    @property
    def penalizes(self) -> bool:
        return self.repetition_penalty != 1.0 and self.penalty_window > 0


def _real(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    ok = isinstance(value, int | float | np.floating) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or not (low <= float(value) <= high) or (open_low and float(value) == low):  # type: ignore[arg-type]
        raise ConfigError(f"{name} is {value!r}; it must be a number {'above' if open_low else 'from'} {low} to {high}")


def _whole(name: str, value: object, limit: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= int(value) < limit:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number from 0 to {limit - 1}")


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) of token `index` under `seed`.

    >>> uniform(7, 3) == uniform(7, 3), uniform(7, 3) == uniform(7, 4)
    (True, False)
    """
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index << 64)).random())


@dataclass(frozen=True)
class Draws:
    """How one token is chosen for every row of a step.

    indices: number of tokens that the sequence has generated before this one. histories: its tokens so far, for the
    repetition penalty.
    """

    params: tuple[SamplingParams, ...]
    indices: tuple[int, ...]
    histories: tuple[Seq[int], ...] = field(compare=False)

    def draw(self, ops: Ops, logits: F32) -> I32:
        """Token ids [R] of the backend, for logits [R, V]."""
        params = self.params
        if any(p.penalizes for p in params):
            recent = [
                np.asarray(h[-p.penalty_window :] if p.penalizes else [], np.int32)
                for p, h in zip(params, self.histories, strict=True)
            ]
            logits = ops.penalize(logits, recent, np.array([p.repetition_penalty for p in params], np.float32))
        u = [uniform(p.seed, i) if p.temperature > 0 else 0.0 for p, i in zip(params, self.indices, strict=True)]
        return ops.sample(
            logits,
            np.array([p.temperature for p in params], np.float32),
            np.array([p.top_k for p in params], np.int32),
            np.array([p.top_p for p in params], np.float32),
            np.array([p.min_p for p in params], np.float32),
            np.array(u, np.float64),
        )

    def following(self) -> Draws | None:
        """The choice of the tokens after these, before these are known; None where it depends on them."""
        if any(p.penalizes for p in self.params):
            return None
        return replace(self, indices=tuple(i + 1 for i in self.indices))


def choose(
    ops: Ops, logits: F32, params: Seq[SamplingParams], histories: Seq[Seq[int]], indices: Seq[int]
) -> list[int]:
    """One token id for every row of logits [R, V]; see `Draws`."""
    ids = ops.fetch(Draws(tuple(params), tuple(indices), tuple(histories)).draw(ops, logits))
    return [int(i) for i in ids]
