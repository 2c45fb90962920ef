"""Arenas that grow together share pieces of memory: `cpu` for large pages, `cuda` for what a driver rounds up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], size: Callable[[T], int], enough: int) -> Iterator[list[T]]:
    """Neighbours in batches: each ends with the first item with which it has `enough` bytes.

    >>> list(batches([3, 4, 5, 1], lambda n: n, 6))
    [[3, 4], [5, 1]]
    """
    batch: list[T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= enough:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
