"""Who is told when kernels are compiled; apart from `_jit`, so that kernels do not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from numba.core.event import Listener, install_listener


def compiling(begins: Callable[[], None], ends: Callable[[], None]) -> AbstractContextManager[Any]:
    """In it the two are called whenever a compilation begins and ends; loading from disk is none. Kernels that call
    kernels nest."""

    class Forward(Listener):
        def on_start(self, event: Any) -> None:
            begins()

        def on_end(self, event: Any) -> None:
            ends()

    found: AbstractContextManager[Any] = install_listener("numba:compile", Forward())
    return found
