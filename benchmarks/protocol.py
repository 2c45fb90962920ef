"""Workers that a benchmark drives one request at a time, so that two programs can be timed in turns on one machine.

A worker is a process that reads one JSON request a line from stdin, calls the handler of that name and writes one JSON
line. While one worker computes, the other waits in read() and uses no core. Standard library only: the peer's worker
runs in whatever Python has the peer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class Side(ABC):
    """One program in the comparison: a model and a sequence. Every public method answers a request of that name."""

    @abstractmethod
    def _run(self, ids: list[int]) -> None:
        """Append tokens to the sequence; return when they are computed."""

    def prefill(self, n: int) -> dict[str, Any]:
        """Seconds for n more tokens of a prompt."""
        began = time.perf_counter()
        self._run(tokens(n, seed=3))
        return {"s": time.perf_counter() - began}

    def decode(self, n: int) -> dict[str, Any]:
        """Seconds for n tokens, one after the other."""
        ids = tokens(n, seed=4)
        began = time.perf_counter()
        for i in ids:
            self._run([i])
        return {"s": time.perf_counter() - began}

    def answer(self, prompt: list[int], n: int) -> dict[str, Any]:
        """Seconds for n tokens after a prompt, one after the other."""
        self._run(prompt)
        return self.decode(n)


def serve(side: Side) -> None:
    """Answer requests until stdin ends. Whatever libraries print goes to stderr."""
    handlers = {name: getattr(side, name) for name in dir(side) if not name.startswith("_")}
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = handlers[request.pop("do")](**request)
        except Exception as e:
            reply = {"error": f"{type(e).__name__}: {e}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()


def tokens(n: int, vocab: int = 40_000, seed: int = 1) -> list[int]:
    """Pseudo-random token ids, the same in every program."""
    ids, x = [], seed
    for _ in range(n):
        x = (x * 1103515245 + 12345) % 2**31
        ids.append(300 + x % (vocab - 300))
    return ids


class WorkerError(Exception):
    """A worker could not start or do what it was asked."""


class Worker:
    """The client's side of one worker process."""

    def __init__(self, script: str, python: str = sys.executable) -> None:
        self.started = time.perf_counter()
        path = Path(__file__).parent / script
        self._process = subprocess.Popen(
            [python, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def __call__(self, do: str, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its reply. Raises WorkerError."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{do}: the worker ended with code {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{do}: {reply['error']}")
        return reply

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
