"""The peer's side of the benchmark: llama.cpp through llama-cpp-python, at the level of llama_decode."""

from __future__ import annotations

import resource
import time
from typing import Any

from protocol import Side, serve, tokens

CHUNK = 512
# ggml's numbers of K/V types
TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}


class Worker(Side):
    """One model and one sequence at some depth."""

    def hello(self) -> dict[str, Any]:
        """Whether the peer is there, and its version."""
        import llama_cpp

        return {"version": llama_cpp.__version__}

    def open(self, model: str, ctx: int, threads: int, kv: str) -> dict[str, Any]:
        """Load a model with the peer's defaults; a quantized V needs flash attention."""
        import llama_cpp

        self.lib = llama_cpp
        k, _, v = kv.partition("/")
        began = time.perf_counter()
        self.llm = llama_cpp.Llama(
            model,
            n_ctx=ctx,
            n_batch=CHUNK,
            n_threads=threads,
            n_threads_batch=threads,
            type_k=TYPES[k],
            type_v=TYPES[v or k],
            flash_attn=(v or k) != "f16",
            verbose=False,
        )
        self.depth = 0
        return {"load_s": time.perf_counter() - began}

    def warm(self) -> dict[str, Any]:
        """One chunk and one token."""
        self._run(tokens(CHUNK))
        self._run(tokens(1))
        return self.fill(0)

    def fill(self, depth: int) -> dict[str, Any]:
        """Bring the sequence to `depth` tokens, or a little more where a sliding window forbids going back."""
        if self.depth > depth:
            memory = self.lib.llama_get_memory(self.llm.ctx)
            if not self.lib.llama_memory_seq_rm(memory, 0, depth, -1):
                return {"depth": self.depth}
            self.depth = depth
        self._run(tokens(depth, seed=2)[self.depth :])
        return {"depth": self.depth}

    def first(self, n: int) -> dict[str, Any]:
        """Tokenize, read a prompt of n tokens and choose one more; the driver takes the time."""
        text = self.llm.detokenize(tokens(n, seed=6))
        self.llm.create_completion(text.decode("utf-8", "replace"), max_tokens=1, temperature=0)
        return {}

    def memory(self) -> dict[str, Any]:
        """Peak resident memory in bytes."""
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def _run(self, ids: list[int]) -> None:
        for a in range(0, len(ids), CHUNK):
            part = ids[a : a + CHUNK]
            array = (self.lib.llama_token * len(part))(*part)
            if self.lib.llama_decode(self.llm.ctx, self.lib.llama_batch_get_one(array, len(part))):
                raise RuntimeError("llama_decode failed")
            self.depth += len(part)
        self.lib.llama_synchronize(self.llm.ctx)


if __name__ == "__main__":
    serve(Worker())
