"""One step for a batch of sequences, any number of new tokens each.

Prefill chunk, decode, verification of drafts and many agents at once are the same call: every item brings its new
token ids, the step extends the sequences, lists the segments that the rows read, runs the model and returns logits, or
the most likely tokens.
A step happens completely or not at all: when it fails or is interrupted, every sequence has its former length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from polykv.cache.pool import KVPool
from polykv.cache.segments import plan_segments
from polykv.cache.sequence import Sequence
from polykv.errors import ConfigError, PolyKVError, PromptError
from polykv.model.loader import Model
from polykv.model.transformer import Observer, Transformer
from polykv.ops import Ops
from polykv.types import F32, I32, Activations, Greedy, Slots

# A step whose rows together took more than this part of all logits would have been faster without a screen; so are
# probably those that follow, for it is the text that makes a model unsure. One of them takes all logits at once, then
# two, four, up to REST, until a screen pays again.
WIDE, REST = 0.4, 8

T = TypeVar("T")
Batch = list[tuple[Sequence, list[int]]]


class Logits(Enum):
    """Which rows of an item need logits."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass
class StepCounters:
    """What the steps of one runner did, summed over its life.

    rows: tokens processed. head_rows: rows that got logits, or a token. greedy_rows: those that got a token;
    screened_rows: those of them that took less than all logits, and exact_logits: how many logits these took together.
    k_scaled, q_scaled: rows of a layer whose keys were stored times factors of a calibration, and whose queries met
    that; the two are always equal. What the rows read, and how much of it was shared, is counted by the pool
    (`KVPool.counters`).
    """

    steps: int = 0
    rows: int = 0
    head_rows: int = 0
    greedy_rows: int = 0
    screened_rows: int = 0
    exact_logits: int = 0
    k_scaled: int = 0
    q_scaled: int = 0


class Runner:
    """Runs steps of one model over one pool."""

    def __init__(
        self, ops: Ops, model: Model, pool: KVPool, activations: Activations, observer: Observer | None = None
    ) -> None:
        self.pool = pool
        self.transformer = Transformer(ops, model, pool, activations, observer)
        self.counters = StepCounters()
        # Steps to go without a screen, and how many it will be the next time.
        self._rest, self._pause = 0, 1
        self.vocab = model.config.vocab

    def step(self, batch: Batch, logits: Logits | list[Logits] = Logits.LAST, *, out: F32 | None = None) -> F32:
        """Append the new ids of every (sequence, ids) item and return float32 logits [rows asked for, V], in order.

        logits: for all items, or one entry per item. out: receives the result when given.
        Raises PromptError (an id outside the vocabulary), CapacityError (pool full) and PolyKVError (logits that are
        not finite). After any exception the sequences are as before.
        """

        found: F32 = self.transformer.ops.fetch(self.run(batch, logits, lambda h: self._head(h, out)))
        return found

    def sampled(self, batch: Batch, logits: list[Logits], choose: Callable[[F32], T]) -> T:
        """`step`, and what `choose` makes of its logits, which stay where the backend has them."""
        return self.run(batch, logits, lambda h: choose(self._head(h)))

    def _head(self, h: F32, out: F32 | None = None) -> F32:
        found = self.transformer.logits(h, out)
        _check_finite(found)
        return found

    def next_tokens(self, batch: Batch, logits: Logits | list[Logits] = Logits.LAST, *, room: F32 | None = None) -> I32:
        """`step`, and the most likely token of every row asked for instead of its logits: the same that `step` and
        `Ops.sample` at temperature 0 give. room: see `Ops.greedy`. Raises what `step` raises."""

        def head(h: F32) -> Greedy:
            found = self.transformer.greedy(h, room, screen=self._rest == 0)
            _refuse(np.isnan(found.logits))
            return found

        found = self.run(batch, logits, head)
        self._count(found.exact)
        return found.ids

    def _count(self, exact: I32) -> None:
        """Take note of how many logits the rows of a step took."""
        screened = exact[exact < self.vocab]
        self.counters.greedy_rows += len(exact)
        self.counters.screened_rows += len(screened)
        self.counters.exact_logits += int(screened.sum())
        if self._rest > 0:
            self._rest -= 1
        elif screened.sum() > WIDE * self.vocab:
            self._rest, self._pause = self._pause, min(2 * self._pause, REST)
        else:
            self._pause = 1

    def run(self, batch: Batch, wanted: Logits | list[Logits], finish: Callable[[F32], T]) -> T:
        """A step that ends with finish(h), h [rows asked for, E] before the final norm; an exception of it undoes the
        step."""
        with self.pool.lock:
            return self._step(batch, wanted if isinstance(wanted, list) else [wanted] * len(batch), finish)

    def _step(self, batch: Batch, wanted: list[Logits], finish: Callable[[F32], T]) -> T:
        counts, flat = self._check(batch)
        before = [s.length for s, _ in batch]
        head_rows = _head_rows(counts, wanted)
        if not batch:
            return finish(np.zeros((0, self.transformer.config.embd), np.float32))
        positions = np.concatenate([np.arange(p, p + n, dtype=np.int32) for p, n in zip(before, counts, strict=True)])
        try:
            slots = _by_group([s.extend(ids) for s, ids in batch])
            segments = plan_segments(self.pool, [(s, n) for (s, _), n in zip(batch, counts, strict=True)])
            result = finish(self.transformer.hidden(flat, positions, slots, segments, head_rows))
        except BaseException:
            # KeyboardInterrupt included: rows whose K and V are incomplete must never be read.
            for (s, _), n in zip(batch, before, strict=True):
                if s.length > n:
                    s.trim(n)
            raise
        for s, _ in batch:
            s.commit()
        self.counters.steps += 1
        self.counters.rows += len(flat)
        self.counters.head_rows += len(head_rows)
        self.counters.k_scaled += self.transformer.k_scaled * len(flat)
        self.counters.q_scaled += self.transformer.q_scaled * len(flat)
        return result

    def _check(self, batch: Batch) -> tuple[list[int], I32]:
        counts = [len(ids) for _, ids in batch]
        if 0 in counts or len({id(s) for s, _ in batch}) < len(batch):
            raise ConfigError("a step needs at least one new token for every sequence, and every sequence once")
        new = [i for _, ids in batch for i in ids]
        # Compared as Python integers: an absurd id must not overflow on its way into an array.
        if new and not (min(new) >= 0 and max(new) < self.vocab):
            bad = next(i for i in new if not 0 <= i < self.vocab)
            raise PromptError(f"token id {bad} is outside the vocabulary of {self.vocab}")
        flat = np.array(new, np.int64)
        return counts, flat.astype(np.int32)


def _head_rows(counts: list[int], wanted: Iterable[Logits]) -> I32:
    """Row numbers of a step that need logits."""
    rows: list[int] = []
    end = 0
    for n, want in zip(counts, wanted, strict=True):
        end += n
        rows.extend({Logits.NONE: range(0), Logits.LAST: range(end - 1, end), Logits.ALL: range(end - n, end)}[want])
    return np.array(rows, np.int32)


def _by_group(per_sequence: list[list[Slots]]) -> list[Slots]:
    """Slots of all rows of a step, per cache group."""
    if len(per_sequence) == 1:
        return per_sequence[0]
    return [Slots.join(list(g)) for g in zip(*per_sequence, strict=True)]


def _check_finite(logits: F32) -> None:
    """Refuse NaN and infinity: sampling from them would give a token that means nothing."""
    # A sum passes NaN and infinity on; finite values may overflow it, so only then is every one looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        sound = np.isfinite(logits.sum())
    if not sound:
        _refuse(np.logical_not(np.isfinite(logits).all(axis=1)))


def _refuse(broken: npt.NDArray[np.bool_]) -> None:
    """Raise when any row has a logit that is not finite."""
    if broken.any():
        raise PolyKVError(
            f"the model gave logits that are not finite ({int(broken.sum())} of {len(broken)} rows): "
            "its file holds NaN or infinite weights (`polykv inspect --check-tensors FILE` names them), or a value "
            "overflowed; no token was chosen"
        )
