"""Finding special tokens in text: longest token first, wherever it stands.

The rule (that of llama.cpp, which every GGUF tokenizer was tested with): tokens are tried from the longest (in UTF-8
bytes) to the shortest; each cuts all its occurrences, from the left, out of the text that longer ones have left.

    >>> SpecialTokens({"<a>": 7, "<a><b>": 8, "<b>": 9}).split("x<a><b> <b>y")
    ['x', 8, ' ', 9, 'y']
"""

from __future__ import annotations

from collections.abc import Mapping


class SpecialTokens:
    """A set of token texts, and the cutting of a text at them."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        ordered = sorted(((t, i) for t, i in ids.items() if t), key=lambda p: (-len(p[0].encode()), p[1]))
        self._rank = {t: r for r, (t, _) in enumerate(ordered)}
        self._ids = dict(ordered)
        # A model has thousands of these and a text nearly none: two leading characters rule out most at once.
        self._by_start: dict[str, list[str]] = {}
        for t, _ in ordered:
            self._by_start.setdefault(t[:2], []).append(t)

    def _present(self, text: str) -> list[str]:
        found = [t for start, group in self._by_start.items() if start in text for t in group if t in text]
        return sorted(found, key=self._rank.__getitem__)

    def split(self, text: str) -> list[str | int]:
        """`text` as a list of pieces of plain text (never empty) and ids of special tokens."""
        raw: list[tuple[int, str]] = [(0, text)] if text else []
        found: list[tuple[int, str | int]] = []
        for token in self._present(text):
            left: list[tuple[int, str]] = []
            for start, piece in raw:
                if token not in piece:
                    left.append((start, piece))
                    continue
                for i, part in enumerate(piece.split(token)):
                    if i:
                        found.append((start, self._ids[token]))
                        start += len(token)
                    if part:
                        left.append((start, part))
                        start += len(part)
            raw = left
        if not found:
            return [text] if text else []
        found.extend(raw)
        found.sort(key=lambda p: p[0])
        return [piece for _, piece in found]
