"""Showing text while it is generated: whole characters only, and nothing of a stop string.

shown + held back = text so far;   held back = the longest end of it that could still become a stop string
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from polykv.errors import ConfigError
from polykv.text.tokenizer import Detokenizer, Tokenizer


class TextStream:
    """Text of a growing list of tokens.

    The chunks of `push` and `finish` join to `tokenizer.decode(all ids)`, cut in front of the stop string that is
    complete first (of several that end together: the longest). skip_special: leave control tokens out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, skip_special: bool = False) -> None:
        if isinstance(stop, str) or any(not isinstance(s, str) or not s for s in stop):
            raise ConfigError("stop strings must be a list of non-empty strings")
        self._stop = sorted(set(stop), key=len, reverse=True)
        self._bytes = Detokenizer(tokenizer, skip_special=skip_special)
        # An incremental decoder keeps an unfinished UTF-8 sequence to itself and replaces invalid bytes as one-shot
        # decoding does.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._shown: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        """Everything that `push` and `finish` have returned."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Take one token; return the text that can be shown now (often "", always "" after a stop string)."""
        return "" if self.stopped else self._take(self._decoder.decode(self._bytes.push(token_id)), final=False)

    def finish(self) -> str:
        """Return what is left: held-back text, and U+FFFD for an unfinished UTF-8 sequence."""
        return "" if self.stopped else self._take(self._decoder.decode(b"", final=True), final=True)

    def _take(self, new: str, *, final: bool) -> str:
        text = self._held + new
        cut = self._first_stop(text)
        if cut is not None:
            self.stopped = True
            text, self._held = text[:cut], ""
        else:
            keep = 0 if final else self._possible_prefix(text)
            text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        if text:
            self._shown.append(text)
        return text

    def _first_stop(self, text: str) -> int | None:
        """Start of the stop string that ends first; of those that end together, the leftmost start."""
        found = [(at + len(s), at) for s in self._stop if (at := text.find(s)) >= 0]
        return min(found)[1] if found else None

    def _possible_prefix(self, text: str) -> int:
        """Length of the longest end of `text` that some stop string starts with."""
        longest = 0
        for s in self._stop:
            for n in range(min(len(s) - 1, len(text)), longest, -1):
                if text.endswith(s[:n]):
                    longest = n
                    break
        return longest
