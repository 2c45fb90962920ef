"""Random choices that are the same on every machine and in every version of Python.

Python promises that only of `random.Random(int).random()`; `choice`, `sample` and `shuffle` have changed before. So all
choices are made of such numbers here. Streams are named: what is drawn for one purpose never moves what is drawn for
another, so a sample keeps its needles when its haystack grows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A stream of choices that its names determine, for example a seed, a task, the number of a sample, a purpose.

    >>> Draws(42, "niah_single_1", 0, "values").digits(7)
    '8060388'
    """

    def __init__(self, *names: int | str) -> None:
        digest = hashlib.blake2b("\x00".join(map(str, names)).encode(), digest_size=8).digest()
        self._random = Random(int.from_bytes(digest, "big"))

    def below(self, n: int) -> int:
        """A whole number in 0..n-1."""
        return int(self._random.random() * n)

    def choice(self, items: Seq[T]) -> T:
        return items[self.below(len(items))]

    def sample(self, items: Seq[T], k: int) -> list[T]:
        """k different places of `items`, in random order. Raises ValueError when there are fewer."""
        if k > len(items):
            raise ValueError(f"{k} of {len(items)} items")
        # Fisher-Yates on the places that were touched only: items may be the lines of a long text.
        moved: dict[int, int] = {}
        found = []
        for i in range(k):
            j = i + self.below(len(items) - i)
            found.append(items[moved.get(j, j)])
            moved[j] = moved.get(i, i)
        return found

    def shuffled(self, items: Seq[T]) -> list[T]:
        return self.sample(items, len(items))

    def digits(self, n: int) -> str:
        """A decimal number of n digits that does not begin with 0."""
        return str(10 ** (n - 1) + self.below(9 * 10 ** (n - 1)))

    def letters(self, n: int, alphabet: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ") -> str:
        return "".join(self.choice(alphabet) for _ in range(n))

    def hex(self, n: int) -> str:
        """n hexadecimal digits, lower case."""
        return self.letters(n, "0123456789abcdef")

    def uuid(self) -> str:
        """A version 4 UUID of random bits."""
        d = self.hex(32)
        return f"{d[:8]}-{d[8:12]}-4{d[13:16]}-{'89ab'[int(d[16], 16) % 4]}{d[17:20]}-{d[20:]}"
