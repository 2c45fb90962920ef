"""The side of the benchmark that is ours: steps of polykv's runner, without text. Decoding chooses greedy tokens, as
the engine does, and goes on with them."""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
from protocol import Side, serve, tokens

import polykv
from polykv.cache.sequence import Sequence
from polykv.errors import CapacityError
from polykv.model.runner import Logits
from polykv.ops import OPERATIONS

CHUNK = 512


class Worker(Side):
    """One model and one sequence at some depth."""

    def open(self, model: str, ctx: int, threads: int, kv: str) -> dict[str, Any]:
        """Load a model; kernels that are not in the cache yet are compiled by `warm`."""
        began = time.perf_counter()
        self.llm = polykv.load(model, ctx=ctx, kv=kv, threads=threads)
        self.runner, self.sequence = self.llm.engine.runner, Sequence(self.llm.cache)
        # Logits go to the same memory in every step, as those of the engine do.
        self.logits = np.empty((1, self.runner.vocab), np.float32)
        return {"load_s": time.perf_counter() - began, "weights": self.llm.model.weight_bytes}

    def warm(self) -> dict[str, Any]:
        """Run every shape of step once."""
        for n in (CHUNK, 1):
            self._run(tokens(n))
        self.sequence.trim(0)
        forks = [self.sequence.fork() for _ in range(2)]
        for n in (1, 2):
            self.runner.next_tokens([(f, [5]) for f in forks[:n]])
        for f in forks:
            f.free()
        return {}

    def fill(self, depth: int) -> dict[str, Any]:
        """Bring the sequence to `depth` tokens, or a little more where a sliding window forbids going back."""
        if self.sequence.length > depth:
            try:
                self.sequence.trim(depth)
            except CapacityError:
                return {"depth": self.sequence.length}
        self._run(tokens(depth, seed=2)[self.sequence.length :])
        return {"depth": self.sequence.length}

    def agents(self, n: int, steps: int) -> dict[str, Any]:
        """Seconds for `steps` tokens of each of n forks of the sequence, the choice included."""
        forks, room = [self.sequence.fork() for _ in range(n)], np.empty((n, self.runner.vocab), np.float32)
        chosen = tokens(n, seed=5)
        began = time.perf_counter()
        for _ in range(steps):
            batch = [(f, [i]) for f, i in zip(forks, chosen, strict=True)]
            chosen = self.runner.next_tokens(batch, room=room).tolist()
        seconds = time.perf_counter() - began
        for f in forks:
            f.free()
        return {"s": seconds}

    def decode(self, n: int) -> dict[str, Any]:
        """Seconds for n tokens, one after the other, each of them the choice of the step before; the first is the one
        that texts begin with, if the model has such a token."""
        bos = self.llm.tokenizer.bos
        chosen = tokens(1, seed=4) if bos is None else [bos]
        began = time.perf_counter()
        for _ in range(n):
            chosen = self.runner.next_tokens([(self.sequence, chosen)], room=self.logits).tolist()
        return {"s": time.perf_counter() - began}

    def answer(self, prompt: list[int], n: int) -> dict[str, Any]:
        """Seconds for n greedy tokens after a prompt."""
        chosen = self.runner.next_tokens([(self.sequence, prompt)], room=self.logits).tolist()
        began = time.perf_counter()
        for _ in range(n):
            chosen = self.runner.next_tokens([(self.sequence, chosen)], room=self.logits).tolist()
        return {"s": time.perf_counter() - began}

    def overhead(self, n: int) -> dict[str, Any]:
        """Share of decode time that is spent outside operations, that is in Python."""
        inside = [0.0]
        saved = {name: getattr(self.llm.ops, name) for name in OPERATIONS}

        def timed(fn: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                began = time.perf_counter()
                try:
                    return fn(*args, **kwargs)
                finally:
                    inside[0] += time.perf_counter() - began

            return call

        for name, fn in saved.items():
            setattr(self.llm.ops, name, timed(fn))
        total = self.decode(n)["s"]
        for name, fn in saved.items():
            setattr(self.llm.ops, name, fn)
        return {"share": 1 - inside[0] / total}

    def first(self, n: int) -> dict[str, Any]:
        """Tokenize, read a prompt of n tokens and choose one more; the driver takes the time."""
        self.llm.generate(self.llm.detokenize(tokens(n, seed=6)), max_tokens=1)
        return {}

    def memory(self) -> dict[str, Any]:
        """Peak resident memory and what of it is K/V, in bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"peak": peak, "kv": self.llm.cache.nbytes, "kv_used": self.llm.cache.used_nbytes}

    def _run(self, ids: list[int]) -> None:
        for a in range(0, len(ids), CHUNK):
            last = a + CHUNK >= len(ids)
            want, out = (Logits.LAST, self.logits) if last else (Logits.NONE, None)
            self.runner.step([(self.sequence, ids[a : a + CHUNK])], want, out=out)


if __name__ == "__main__":
    serve(Worker())
