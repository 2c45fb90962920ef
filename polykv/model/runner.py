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

from polykv.cache.pool import KVPool
from polykv.cache.segments import plan_segments
from polykv.cache.sequence import Sequence
from polykv.errors import ConfigError, NotFiniteError, PromptError
from polykv.model.ahead import Begun, begin, begin_next, by_group
from polykv.model.choice import Choice, Drawn, MostLikely, check_finite, total
from polykv.model.loader import Model
from polykv.model.transformer import Observer, Transformer
from polykv.ops import Ops
from polykv.sampling import Draws
from polykv.types import F32, I32, Activations, Slots

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
    (`KVPool.counters`). ahead: steps that had been begun before they were asked for; ahead_lost: those that were
    begun so, and something else was asked for.
    """

    steps: int = 0
    rows: int = 0
    head_rows: int = 0
    greedy_rows: int = 0
    screened_rows: int = 0
    exact_logits: int = 0
    k_scaled: int = 0
    q_scaled: int = 0
    ahead: int = 0
    ahead_lost: int = 0


@dataclass(frozen=True, eq=False)
class _Rows:
    """A step whose sequences were extended: new tokens per item, their ids [R], where they are written, per cache
    group, and which rows need logits. last: those rows, and the last ones of items without."""

    batch: Batch
    counts: list[int]
    ids: I32
    slots: list[Slots]
    head_rows: I32
    last: I32


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
        # The step that probably comes next.
        self._begun: Begun | None = None

    def step(self, batch: Batch, logits: Logits | list[Logits] = Logits.LAST, *, out: F32 | None = None) -> F32:
        """Append the new ids of every (sequence, ids) item and return float32 logits [rows asked for, V], in order.

        logits: for all items, or one entry per item. out: receives the result when given.
        Raises PromptError (an id outside the vocabulary), CapacityError (pool full) and NotFiniteError (logits, or
        the last hidden row of an item without logits). After any exception the sequences are as before.
        """

        found: F32 = self.transformer.ops.fetch(self.run(batch, logits, lambda h: self._head(h, out)))
        return found

    def sampled(self, batch: Batch, logits: list[Logits], draws: Draws, *, more: bool = False) -> I32:
        """`step`, and the tokens that `draws` takes out of its logits, which stay where the backend has them.

        more: whether the next call is probably that for the tokens of this one; see `next_tokens`.
        """
        return self._chosen(batch, logits, Drawn(self.transformer, draws), more)

    def _head(self, h: F32, out: F32 | None = None) -> F32:
        found = self.transformer.logits(h, out)
        ops = self.transformer.ops
        check_finite(ops.fetch, found, ops.fetch(total(found)))
        return found

    def next_tokens(
        self, batch: Batch, logits: Logits | list[Logits] = Logits.LAST, *, room: F32 | None = None, more: bool = False
    ) -> I32:
        """`step`, and the most likely token of every row asked for instead of its logits: the same that `step` and
        `Ops.sample` at temperature 0 give. room: see `Ops.greedy`. Raises what `step` raises.

        more: whether the next call is probably that for the tokens of this one. Where the backend works while the host
        does something else, that step is begun at once (`polykv.model.ahead`); results are the same.
        """
        wanted = logits if isinstance(logits, list) else [logits] * len(batch)
        found = self._chosen(batch, wanted, MostLikely(self.transformer, room, self._rest == 0), more)
        self._count(found.exact)
        return found.ids

    def _chosen(self, batch: Batch, wanted: list[Logits], choice: Choice[T], more: bool) -> T:
        """A step that ends with a choice, and the begin of the next one where that pays."""
        with self.pool.lock:
            every = len(batch) > 0 and all(w is Logits.LAST for w in wanted)
            waiting, self._begun = self._begun, None
            if waiting is not None and not (every and waiting.arrives_at(self.pool, batch, choice)):
                self._lose()
                waiting = None
            more = more and every and self.transformer.runs_ahead
            return self._step(batch, wanted, lambda rows: self._choose(rows, choice, waiting, more))

    def _choose(self, rows: _Rows, choice: Choice[T], waiting: Begun | None, more: bool) -> T:
        """The tokens of a step whose sequences were extended. waiting: the same step, if it was begun already."""
        sequences, following = [s for s, _ in rows.batch], choice.following()
        if waiting is not None and not waiting.writes_to(rows.slots):
            self._lose()
            waiting = None
        if waiting is not None:
            begun = waiting
            self.pool.counters.update(begun.counts)
            self.counters.ahead += 1
        else:
            begun = begin(self.transformer, choice, self._hidden(rows))
        if more and following is not None:
            self._begun = begin_next(self.pool, self.transformer, sequences, begun.ids, following)
        found = [fetch() for fetch in begun.found]
        result: T = begun.choice.end(*found)
        if self._begun is not None:
            self._begun.tokens = found[0].tolist()
        return result

    def _lose(self) -> None:
        """Forget the step that was begun ahead: another one is asked for."""
        self._begun = None
        self.counters.ahead_lost += 1

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
            if self._begun is not None:
                self._lose()
            each = wanted if isinstance(wanted, list) else [wanted] * len(batch)
            return self._step(batch, each, lambda rows: finish(self._hidden(rows)))

    def _hidden(self, rows: _Rows) -> F32:
        """Hidden rows that are asked for, of a step whose sequences were extended."""
        if not rows.batch:
            return np.zeros((0, self.transformer.config.embd), np.float32)
        positions = [
            np.arange(s.length - n, s.length, dtype=np.int32) for (s, _), n in zip(rows.batch, rows.counts, strict=True)
        ]
        segments = plan_segments(self.pool, [(s, n) for (s, _), n in zip(rows.batch, rows.counts, strict=True)])
        h = self.transformer.hidden(rows.ids, np.concatenate(positions), rows.slots, segments, rows.last)
        if len(rows.last) == len(rows.head_rows):
            return h
        # Nobody would look at what a part of a prompt has left in the cache.
        fetch, others = self.transformer.ops.fetch, np.flatnonzero(~np.isin(rows.last, rows.head_rows))
        check_finite(fetch, h[others], fetch(total(h[others])), "hidden values")
        return h[np.flatnonzero(np.isin(rows.last, rows.head_rows))]

    def _step(self, batch: Batch, wanted: list[Logits], work: Callable[[_Rows], T]) -> T:
        counts, flat = self._check(batch)
        before = [s.length for s, _ in batch]
        head_rows = _head_rows(counts, wanted)
        last = _head_rows(counts, [Logits.LAST if w is Logits.NONE else w for w in wanted])
        written: list[list[Slots]] = []
        try:
            slots = by_group([s.extend(ids) for s, ids in batch])
            written.append(slots)
            result = work(_Rows(batch, counts, flat, slots, head_rows, last))
        except BaseException as error:
            # KeyboardInterrupt included: rows whose K and V are incomplete must never be read.
            begun, self._begun = self._begun, None
            for (s, _), n in zip(batch, before, strict=True):
                if s.length > n:
                    s.trim(n)
            if isinstance(error, NotFiniteError):
                for cells in written + ([begun.slots] if begun is not None else []):
                    self.transformer.clear(cells)
            raise
        if not batch:
            return result
        for s, _ in batch:
            s.commit()
        if self._begun is not None:
            self._begun.changes = self.pool.changes
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
