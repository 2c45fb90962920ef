"""A text cut into pieces that a sentence can be put between: words, and parts of words where a script has no blanks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Characters of a word that is a piece by itself, and of one in a script that does not set blanks between words; of the
# parts that longer ones are cut into.
LONGEST, LONGEST_UNSPACED, PART = 80, 8, 8
_WORD = re.compile(r"\S+")
# After the marks that end a sentence of such scripts.
_SENTENCE = re.compile(r"(?<=[。！？．।॥])")


def pieces(text: str) -> list[str]:
    """The pieces of a text in order; a piece that a blank follows ends with one.

    >>> pieces("calm otter"), pieces("光は波である。粒子でもある。誰も知らない。")
    (['calm ', 'otter'], ['光は波である。', '粒子でもある。', '誰も知らない。'])
    """
    words = _WORD.findall(text)
    found = [f"{word} " for word in words[:-1]] + words[-1:]
    if all(len(word) <= LONGEST_UNSPACED for word in words):
        return found
    return [part for piece in found for part in _parts(piece)]


def unspaced(character: str) -> bool:
    """Whether a character is of a script that does not set blanks between words (or of one of few near it): from Thai
    on, less the punctuation of all scripts."""
    return "\u0e00" <= character < "\u2000" or character >= "\u2e80"


def _parts(piece: str) -> Iterator[str]:
    limit = LONGEST_UNSPACED if any(map(unspaced, piece)) else LONGEST
    if len(piece.rstrip()) <= limit:
        yield piece
        return
    for sentence in filter(None, _SENTENCE.split(piece)):
        start = 0
        while start < len(sentence):
            end = _whole(sentence, start + PART)
            yield sentence[start:end]
            start = end


def _whole(text: str, end: int) -> int:
    """The first place at or after `end` that no mark, joiner or blank follows, for they belong to what they follow."""
    while end < len(text) and (unicodedata.category(text[end])[0] in "MZ" or text[end] == "\u200d"):
        end += 1
    return min(end, len(text))
