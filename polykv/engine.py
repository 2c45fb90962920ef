"""The engine: a queue of requests in, tokens and text out, as many sequences per step as there are.

Every step takes one token of each sequence that is generating and, beside them, the next chunk of the prompts that are
still being read, so a long prompt does not stop the others. What a request gets never depends on the company it has:
the rows of a step do not influence each other (docs/ARCHITECTURE.md) and random numbers depend on seed and index only.
That is also why a request can be put back when the cache is full and computed again later with the same result.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from weakref import WeakSet

import numpy as np

from polykv.cache.pool import KVPool
from polykv.engine_capacity import Releasable
from polykv.engine_counters import EngineCounters
from polykv.engine_request import Finish, Generation, Request
from polykv.engine_schedule import Schedule, sequence_of, shorten
from polykv.engine_shift import check_shift
from polykv.engine_stream import Stream
from polykv.engine_text import AnswerText
from polykv.errors import CapacityError, ConfigError, PromptError
from polykv.model.runner import Logits, Runner
from polykv.ops import Ops
from polykv.sampling import Draws
from polykv.text.tokenizer import Tokenizer
from polykv.types import F32

# Logits of so many rows keep their memory between steps.
KEPT_ROWS = 16


class Engine:
    """Schedules requests over one runner and one pool. Threads that share it take turns, step by step; a step advances
    the requests of all of them.

    context: longest sequence in tokens. chunk: prompt tokens per step. max_batch: sequences per step.
    """

    def __init__(
        self,
        ops: Ops,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        context: int,
        chunk: int = 512,
        max_batch: int = 64,
    ) -> None:
        if min(context, chunk, max_batch) < 1:
            raise ConfigError("context, chunk and max_batch must be at least 1")
        self.runner, self.tokenizer, self.context, self.chunk = runner, tokenizer, context, chunk
        self.pool: KVPool = runner.pool
        self.counters = EngineCounters()
        self._ops = ops
        self._schedule = Schedule(self.pool, self.counters, chunk=chunk, max_batch=max_batch)
        self._logits: F32 = np.empty((0, runner.vocab), np.float32)
        self._trash: deque[Callable[[], object]] = deque()

    @property
    def idle(self) -> WeakSet[Releasable]:
        """Asked to free what they keep for convenience when the cache is full, before a request is put back or
        refused."""
        return self._schedule.idle

    # -- front ---------------------------------------------------------------------------------------------------
    def submit(self, request: Request) -> Request:
        """Put a request in the queue, after checking that it can fit at all.

        Raises PromptError when the prompt is longer than the context allows, ConfigError when a shift is to keep all
        of the context.
        """
        if request.shift is not None:
            check_shift(request.shift, self.context)
        need = len(request.prompt) + (request.max_tokens != 0)
        if need > self.context:
            longest = self.pool.model.context
            advice = "or raise the context (--ctx)" if need <= longest else f"(the model's limit is {longest:,})"
            answer = "" if need == len(request.prompt) else " with one for the answer"
            raise PromptError(
                f"the prompt, document included, has {len(request.prompt):,} tokens; that needs a context of {need:,}"
                f"{answer}, and this session has {self.context:,}: shorten it {advice}"
            )
        if request.sequence is not None:
            have = list(request.sequence.tokens)
            if len(have) >= len(request.prompt) or have != request.prompt[: len(have)]:
                raise PromptError("the prompt does not continue the tokens of the given sequence")
        wanted = self.context if request.max_tokens is None else len(request.prompt) + request.max_tokens
        request.limit = min(wanted, self.context)
        request.text = AnswerText(self.tokenizer, request.stop)
        self._schedule.waiting.append(request)
        return request

    def run(self, requests: Iterable[Request]) -> list[Generation]:
        """Submit all, step until all are done, return their generations in order.

        When it fails or is interrupted (KeyboardInterrupt), the given requests are cancelled, their blocks are given
        back and the exception goes on; the engine stays usable.
        """
        requests = list(requests)
        try:
            for r in requests:
                self.submit(r)
            while not self.tell(requests):
                self.step()
        except BaseException:
            self.drop(requests)
            raise
        return [r.result() for r in requests]

    def stream(self, request: Request) -> Stream:
        """Submit a request and iterate over its text as it appears."""
        return Stream(self, self.submit(request))

    def drop(self, requests: Iterable[Request]) -> None:
        """Cancel requests at once and give back what they hold."""
        with self.pool.lock:
            for r in requests:
                if not r.done:
                    self._schedule.end(r, Finish.CANCELLED)

    def abandon(self, free: Callable[[], object]) -> None:
        """Call `free` at the next `sweep`. For finalizers, which may run in the middle of a step and must not touch the
        pool there."""
        self._trash.append(free)

    def sweep(self) -> None:
        """Give back what cancelled requests and forgotten streams, agents and pools hold. Every step begins with it."""
        with self.pool.lock:
            while self._trash:
                self._trash.popleft()()
            self.drop([r for r in self._schedule.all() if r.cancelled])
            if self.pool.torn or self.pool.lost:
                self.pool.mend()

    def holds(self, request: Request) -> bool:
        """Whether the request is waiting or running here."""
        return request in self._schedule.all()

    @property
    def busy(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._schedule.all())

    # -- one step ------------------------------------------------------------------------------------------------
    def step(self) -> bool:
        """Advance every running request, whoever waits for it; False when there was nothing to do."""
        with self.pool.lock:
            return self._advance()

    def tell(self, requests: Iterable[Request]) -> bool:
        """Report to whoever waits for these requests, between steps: progress of their prompts to their callbacks, and
        what made one of them fail by raising it. Whether all are done.

        Only the one that waits calls it: in a step of several threads nobody meets the exceptions of others.
        """
        requests = list(requests)
        for r in requests:
            if r.error is not None:
                raise r.error
            if r.on_prefill is not None and r.reported != r.read and r.finish is not Finish.CANCELLED:
                r.reported = r.read
                r.on_prefill(min(r.read, len(r.prompt)), len(r.prompt))
        return all(r.done for r in requests)

    def _advance(self) -> bool:
        """A step; the caller holds the lock."""
        self.sweep()
        self._catch_up()
        self._schedule.admit()
        batch = self._schedule.batch()
        if not batch:
            return False
        began, compiling = time.perf_counter(), self._compile_seconds()
        wants = [Logits.LAST if self._completes(r, ids) and r.max_tokens != 0 else Logits.NONE for r, ids in batch]
        ready = [r for (r, _), w in zip(batch, wants, strict=True) if w is Logits.LAST]
        # Greedy tokens do not need all logits.
        greedy = all(r.sampling.greedy for r in ready)
        # Whether they all go on, as far as that is known without their tokens.
        more = all(r.max_tokens is None or r.n_generated + 1 < r.max_tokens for r in ready)
        try:
            items = [(sequence_of(r), ids) for r, ids in batch]
            if greedy:
                tokens = self.runner.next_tokens(items, wants, room=self._room(len(ready)), more=more).tolist()
            else:
                tokens = self.runner.sampled(items, wants, _draws(ready), more=more).tolist()
        except CapacityError as e:
            if not self._schedule.make_room():
                # The last one that runs; it may be that of another thread.
                batch[0][0].error = e
                self._schedule.end(batch[0][0], Finish.CANCELLED)
            return True
        read = [r for r, _ in batch if r.max_tokens == 0 and sequence_of(r).length == len(r.prompt)]
        if read:
            # No token waits for a device that has still to do what it was told.
            self._ops.wait()
        # Compiling is no work of a step; the report has it apart.
        self._account(batch, time.perf_counter() - began - (self._compile_seconds() - compiling))
        for request, token in zip(ready, tokens, strict=True):
            self._accept(request, token)
        for r in read:
            self._schedule.end(r, Finish.LENGTH)
        return True

    def _compile_seconds(self) -> float:
        return self._ops.compiled().get("seconds", 0.0)

    def _room(self, n: int) -> F32 | None:
        """Where n rows of logits go: the same memory in every step of few rows. New memory comes in pages that the
        system clears one by one, which took 2 % of a step with 262,144 tokens."""
        if n > KEPT_ROWS:
            return None
        if len(self._logits) < n:
            self._logits = np.empty((n, self.runner.vocab), np.float32)
        return self._logits[:n]

    def _catch_up(self) -> None:
        """After a step that was interrupted between the model and the choice, go back by the token whose logits, or
        whose successor, were lost: the next step gives the same ones. Make room in contexts that are full now."""
        for r in self._schedule.interrupted():
            sequence = sequence_of(r)
            if sequence.length >= r.n_cells:
                shorten(sequence, r.n_cells - 1)
            self._settle(r)
            if r.shift is not None and r.n_generated and r.n_cells >= self.context and not r.done:
                self._shift(r, r.shift)

    def _shift(self, request: Request, keep: int) -> None:
        """Drop half of a full context, beyond its first `keep` tokens; the next steps read the other half again.

        Interrupted anywhere, it is done anew: what is in the context changes at once, and last.
        """
        past = request.past.again(keep, request.n_cells)
        shorten(sequence_of(request), keep)
        self.counters.shifts += 1
        self.counters.shifted_cells += past.dropped - request.past.dropped
        request.past = past

    @staticmethod
    def _completes(request: Request, ids: list[int]) -> bool:
        return sequence_of(request).length + len(ids) == request.n_cells

    def _account(self, batch: list[tuple[Request, list[int]]], seconds: float) -> None:
        c = self.counters
        rows = sum(len(ids) for _, ids in batch)
        if any(r.n_generated == 0 or len(ids) > 1 for r, ids in batch):
            c.prefill_rows, c.prefill_s = c.prefill_rows + rows, c.prefill_s + seconds
        else:
            c.decode_rows, c.decode_s = c.decode_rows + rows, c.decode_s + seconds
        for r, _ in batch:
            r.steps += 1
            if r.n_generated:
                r.decode_s += seconds
            else:
                r.prefill_s += seconds
                r.read = sequence_of(r).length

    def _accept(self, request: Request, token: int) -> None:
        """Append a chosen token and apply the rules that end a generation."""
        request.ids.append(token)
        self._settle(request)

    def _settle(self, request: Request) -> None:
        """Take note of tokens that were chosen: their text, and whether they end the generation. May be interrupted and
        called again."""
        text = request.text
        assert text is not None
        while not request.done:
            why = self._over(request, text)
            if why is not None:
                self._schedule.end(request, why)
            elif text.n < request.n_generated:
                text.put(request.ids[len(request.prompt) + text.n])
            else:
                return

    def _over(self, request: Request, text: AnswerText) -> Finish | None:
        """Why the generation ends with the tokens that its text has, or before the next one; None: it does not."""
        if text.n:
            if text.stopped:
                return Finish.STOP
            if request.max_tokens is not None and text.n >= request.max_tokens:
                return Finish.LENGTH
            if request.n_cells >= request.limit and request.shift is None and text.n == request.n_generated:
                return Finish.CONTEXT
        if text.n < request.n_generated and not request.ignore_eog:
            token = request.ids[len(request.prompt) + text.n]
            return Finish.EOG if token in self.tokenizer.eog else None
        return None


def _draws(ready: list[Request]) -> Draws:
    """How the next tokens of these requests are chosen."""
    return Draws(tuple(r.sampling for r in ready), tuple(r.n_generated for r in ready), tuple(r.ids for r in ready))
