"""Text of a token -> its id, in 12 bytes a token.

A dict of 262,144 tokens takes 19 MB, a tenth of what a process with such a model holds beside weights and K/V. Here the
hashes of the texts are sorted and searched, and what is found is compared with the token itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np


class TokenIndex:
    """Ids of tokens; `tokens` is kept, not copied.

    >>> index = TokenIndex(["a", "b", "ab"])
    >>> index["ab"], index.get("c"), "b" in index
    (2, -1, True)
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        hashes = np.fromiter(map(hash, tokens), np.int64, len(tokens))
        order = np.argsort(hashes, kind="stable").astype(np.intc)
        # Arrays, because reading one element of them is faster than of NumPy's.
        self._hashes = array("q", hashes[order].tobytes())
        self._ids = array("i", order.tobytes())

    def get(self, text: str) -> int:
        """Id of the token with this text (of equal ones the first), or -1."""
        wanted, hashes = hash(text), self._hashes
        i = bisect_left(hashes, wanted)
        while i < len(hashes) and hashes[i] == wanted:
            if self._tokens[self._ids[i]] == text:
                return self._ids[i]
            i += 1
        return -1

    def __getitem__(self, text: str) -> int:
        """Like `get`, but raises KeyError."""
        token = self.get(text)
        if token < 0:
            raise KeyError(text)
        return token

    def __contains__(self, text: str) -> bool:
        return self.get(text) >= 0

    def repeated(self) -> str | None:
        """A text that several tokens have, or None."""
        equal = np.flatnonzero(np.diff(np.frombuffer(self._hashes, np.int64)) == 0)
        for i in equal.tolist():
            if self.get(self._tokens[self._ids[i + 1]]) != self._ids[i + 1]:
                return self._tokens[self._ids[i + 1]]
        return None
