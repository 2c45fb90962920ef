"""Says when kernels are compiled, which happens once per machine and takes a while."""

from __future__ import annotations

import time
from typing import Any

from polykv.commands.streams import say

# What is compiled for a backend, and how long that takes.
_WHAT = {
    "cpu": ("CPU kernels", "this takes up to two minutes"),
    "cuda": ("GPU kernels", "each takes a second or so, when it is first needed"),
}


class Compiling:
    """Context manager around work that may compile kernels; may be entered again.

    The first compilation is announced as a line of its own on stderr, its total time when the work is over.
    seconds, kernels: sums over all entries; callers subtract `seconds` from what they time.
    """

    def __init__(self, backend: str) -> None:
        self.seconds, self.kernels = 0.0, 0
        self._backend = backend
        self._depth, self._began, self._told = 0, 0.0, 0
        self._installed: Any = None

    def started(self) -> None:
        """A compilation begins; kernels that call kernels nest."""
        if self._depth == 0:
            self._began = time.perf_counter()
            if not self.kernels:
                what, how_long = _WHAT[self._backend]
                say(f"polykv: compiling {what}, {_how_often()}: {how_long} ...")
        self._depth += 1
        self.kernels += 1

    def ended(self) -> None:
        """A compilation is over."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began

    def __enter__(self) -> Compiling:
        from polykv.ops import load

        self._installed = load(self._backend).compiling(self.started, self.ended)
        self._installed.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._installed is not None:
            self._installed.__exit__(*exc)
            self._installed = None
        if self.kernels > self._told:
            new = f"{self.kernels - self._told} more" if self._told else f"{self.kernels} kernels"
            self._told = self.kernels
            say(f"polykv: compiled {new}, {self.seconds:.1f} s in all")


def _how_often() -> str:
    from polykv.doctor import kernels_are_kept

    return "once" if kernels_are_kept() else "in every run (see `polykv doctor`)"
