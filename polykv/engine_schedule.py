"""Which requests wait, which run, and who gives way when the cache is full.

A request waits until its cells fit beside those of the running ones, then runs to its end. When the estimate was too
low, the latest one is put back: its blocks are freed and computed again later, which changes no token.
"""

from __future__ import annotations

from collections import deque
from weakref import WeakSet

from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.engine_capacity import Releasable, fits
from polykv.engine_counters import EngineCounters
from polykv.engine_request import Finish, Request
from polykv.errors import CapacityError


class Schedule:
    """The queue and the batch of one engine.

    chunk: prompt tokens per step. max_batch: sequences per step. idle: asked to free what they keep for convenience
    when the cache is full, before a request is put back or refused.
    """

    def __init__(self, pool: KVPool, counters: EngineCounters, *, chunk: int, max_batch: int) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.idle: WeakSet[Releasable] = WeakSet()
        self._pool, self._counters, self._chunk, self._max_batch = pool, counters, chunk, max_batch
        # A request was put back; nothing is admitted until a running one ends, or the two would displace each other.
        self._crowded = False

    def all(self) -> list[Request]:
        """Requests that wait or run."""
        return [r for r in (*self.waiting, *self.running) if not r.done]

    def admit(self) -> None:
        """Let waiting requests run, in order of arrival, as long as they fit."""
        while self.waiting and len(self.running) < self._max_batch and not self._crowded:
            request = self.waiting[0]
            if not self._has_room(request):
                break
            if request.sequence is None:
                request.sequence, reused = Sequence.attach(self._pool, request.cells())
            else:
                reused = request.sequence.length
            if request.steps == 0:
                # A request that comes back after preemption finds its own blocks; that is no saving.
                request.cache_n = reused
                self._counters.requests += 1
                self._counters.prompt_n += len(request.prompt)
                self._counters.cache_n += reused
            request.start = reused
            self.running.append(request)
            self.waiting.popleft()

    def interrupted(self) -> list[Request]:
        """The running requests, after the last step may have broken off anywhere: what it was ending has ended."""
        for r in (*self.waiting, *self.running):
            if r.ending is not None:
                self.end(r, r.ending)
        running = list(self.running)
        for r in running:
            if r in self.waiting:
                # It was being admitted.
                self.waiting.remove(r)
        return running

    def batch(self) -> list[tuple[Request, list[int]]]:
        """New ids of this step: one per generating request, and up to `chunk` tokens of prompts, or
        of what is read again, in order of arrival."""
        batch = []
        room = self._chunk
        for r in self.running:
            done = sequence_of(r).length
            pending = r.n_cells - done
            n = 1 if pending == 1 else min(pending, room)
            if pending > 1:
                room -= n
            if n > 0:
                batch.append((r, r.cells(done, n)))
        return batch

    def end(self, request: Request, why: Finish) -> None:
        """Take a request out. Interrupted anywhere, it may be called again, and the next step does: the first reason
        holds."""
        request.ending = request.ending or why
        if request.text is not None and request.ending is not Finish.STOP:
            request.text.finish()
        if request.owned:
            self._release(request)
        # Blocks are given back before it is done, and it is done before it is forgotten: nobody waits for it in vain.
        request.finish = request.ending
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._crowded = False
            self.running.remove(request)

    # -- room ----------------------------------------------------------------------------------------------------
    def _has_room(self, request: Request) -> bool:
        """Whether the request can be computed to its end beside the running ones, without putting any of them back."""
        while not fits(self._pool, [*self.running, request], self._chunk):
            if not any(holder.release() for holder in self.idle):
                # Alone it may try: cached prefixes can make it smaller than the estimate, and the pool says what lacks.
                return not self.running
        return True

    def make_room(self) -> bool:
        """The pool is full: free idle sequences, else put the latest request back; False when neither is possible."""
        if any(holder.release() for holder in self.idle):
            return True
        if len(self.running) < 2:
            return False
        request = self.running[-1]
        # Interrupted, it is in the queue already, or still runs.
        self.waiting.appendleft(request)
        self.running.pop()
        self._release(request)
        self._crowded = True
        self._counters.preempted += 1
        return True

    def _release(self, request: Request) -> None:
        """Give back the blocks that a request has added since it was admitted."""
        if request.sequence is None:
            return
        if request.owned:
            request.sequence.free()
            request.sequence = None
        elif request.start is not None and request.sequence.length > request.start:
            shorten(request.sequence, request.start)
        request.start = None


def sequence_of(request: Request) -> Sequence:
    """The sequence of a running request."""
    assert request.sequence is not None
    return request.sequence


def shorten(sequence: Sequence, length: int) -> None:
    """Cut a sequence to `length` tokens at most; where a sliding window has let go of what is needed then, empty it."""
    try:
        sequence.trim(min(length, sequence.length))
    except CapacityError:
        sequence.free()
