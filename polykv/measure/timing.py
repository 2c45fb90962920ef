"""How long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(run: Callable[[], object], budget: float) -> float:
    """The fastest of repeated runs that together take `budget` seconds (at least five); other work only slows down."""
    run()
    best, spent, n = float("inf"), 0.0, 0
    while spent < budget or n < 5:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent, n = min(best, took), spent + took, n + 1
    return best
