"""An array of strings in a GGUF file, decoded when one is asked for.

The vocabulary of a model may have 262,144 tokens: 24 MB as Python strings, of which a run reads a few hundred.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import overload


class Texts(Sequence[str]):
    """Strings at known places of a mapped file: `starts` (bytes, ascending, one more than strings) and where a string's
    length of 8 bytes lies in front of it. Whoever makes one has checked that all are UTF-8 and inside the file.
    """

    def __init__(self, buf: mmap, starts: array[int]) -> None:
        self._buf, self._starts = buf, starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, i: int) -> str: ...

    @overload
    def __getitem__(self, i: slice) -> list[str]: ...

    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"string {i} of {n}")
        # The last start is one past the end, as if another string followed.
        i += n if i < 0 else 0
        return str(self._buf[self._starts[i] : self._starts[i + 1] - 8], "utf-8")

    def __iter__(self) -> Iterator[str]:
        buf, start = self._buf, self._starts[0]
        for following in self._starts[1:]:
            yield str(buf[start : following - 8], "utf-8")
            start = following

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of the same strings."""
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]
