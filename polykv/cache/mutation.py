"""Changes of tables and reference counts that Ctrl-C may break off between any two of their lines.

No line order is safe against that, so nothing is undone on the spot: the change leaves a mark (`KVPool.torn`), and the
next one begins with `KVPool.mend`, which counts anew from the tables. So no block is lost or given back twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from polykv.cache.pool import KVPool

Change = TypeVar("Change", bound=Callable[..., Any])


class _Holder(Protocol):
    """What holds blocks of a pool."""

    pool: KVPool


def mutation(change: Change) -> Change:
    """A method that changes tables and counts: it holds the pool's lock, mends first and marks what breaks off."""

    @wraps(change)
    def call(self: _Holder, *args: Any, **kwargs: Any) -> Any:
        with self.pool.lock:
            if self.pool.torn:
                self.pool.mend()
            self.pool.changes += 1
            try:
                return change(self, *args, **kwargs)
            except BaseException:
                self.pool.torn = True
                raise

    return cast(Change, call)
