"""What needles are hidden in: lines of a fixed filling, lines of other needles, or a running text.

The structure is that of RULER (Hsieh et al., 2024, arXiv:2404.06654; NVIDIA/RULER, `niah.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate

from polykv.errors import ConfigError
from polykv.evals.draws import Draws
from polykv.evals.pieces import pieces
from polykv.evals.words import listed

# The filling: five short sentences, one line.
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
# Places in a running text, in percent of its sentences: 40, evenly spread.
DEPTHS = tuple(round(100 * i / 39) for i in range(40))
# Words that end with a full stop inside a sentence.
_ABBREVIATIONS = frozenset(listed("mr. mrs. ms. dr. prof. st. vs. e.g. i.e. etc. cf. no. fig. vol. pp. ca. jr. sr."))
_END = re.compile(r"""[.!?。！？．।॥]["'”’)\]」』）]*$""")
_INITIAL = re.compile(r"^\W*[A-Z]\.$")


@dataclass(frozen=True)
class Placed:
    """Text with needles in it. at: the character where each needle begins, in the order the needles were given."""

    text: str
    at: tuple[int, ...]


@dataclass(frozen=True)
class Essay:
    """A running text as words (`pieces`: with the blank behind them). name: where it is from. ends: for each word,
    whether a sentence ends with it."""

    name: str
    words: tuple[str, ...]
    ends: tuple[bool, ...]

    @staticmethod
    def of(text: str, name: str = "text") -> Essay:
        """Raises ConfigError for a text without words."""
        words = tuple(pieces(text))
        if not words:
            raise ConfigError(f"{name}: the text is empty, nothing can be hidden in it")
        # The text may be read again from its beginning.
        words = (*words[:-1], f"{words[-1]} ")
        following = (*words[1:], words[0])
        return Essay(name, words, tuple(ends_sentence(w, n) for w, n in zip(words, following, strict=True)))

    def sentences(self, n: int) -> list[str]:
        """The first n words, from the start again where the text is shorter, as sentences; the last may be cut."""
        found, start = [], 0
        words = [self.words[i % len(self.words)] for i in range(n)]
        for i in range(n):
            if self.ends[i % len(self.words)] or i == n - 1:
                found.append("".join(words[start : i + 1]).rstrip())
                start = i + 1
        return found


def ends_sentence(word: str, following: str) -> bool:
    """Whether a sentence ends with a word: it ends with . ! or ? of its script (and closing quotes or brackets), is
    neither an abbreviation nor an initial, and the next word does not begin with a small letter.

    >>> ends_sentence("end.)", "Then"), ends_sentence("e.g.", "Unix"), ends_sentence("J.", "Doe")
    (True, False, False)
    """
    word = word.rstrip()
    if not _END.search(word) or word.lower().lstrip("(\"'“‘") in _ABBREVIATIONS or _INITIAL.match(word):
        return False
    return not following.lstrip("(\"'“‘[")[:1].islower()


def in_lines(lines: Seq[str], needles: Seq[str], draws: Draws, depth: float | None = None) -> Placed:
    """Needles on lines of their own, before as many different lines, at random; the first needle comes last.

    depth: where the needles stand, 0 to 1, instead. Raises ValueError for more needles than lines.
    """
    if depth is None:
        places = sorted(draws.sample(range(len(lines)), len(needles)), reverse=True)
    else:
        places = [round(depth * len(lines))] * len(needles)
    return merge(lines, list(zip(places, needles, strict=True)), "\n")


def in_text(sentences: Seq[str], needles: Seq[str], draws: Draws, depth: float | None = None) -> Placed:
    """Needles between the sentences of a text, in order, at places drawn from DEPTHS. depth: as for `in_lines`."""
    if depth is None:
        places = [len(sentences) * p // 100 for p in sorted(draws.sample(DEPTHS, len(needles)))]
    else:
        places = [nearest(sentences, depth)] * len(needles)
    return merge(sentences, list(zip(places, needles, strict=True)), " ")


def nearest(sentences: Seq[str], depth: float) -> int:
    """The place between sentences that is nearest to a depth of 0 to 1 in characters; sentences differ in length.

    >>> nearest(["a" * 80, "b" * 20, "c" * 20], 0.5)
    1
    """
    before = [0, *accumulate(len(s) + 1 for s in sentences)]
    return min(range(len(before)), key=lambda i: abs(before[i] - depth * before[-1]))


def in_order(lines: Seq[str], needles: Seq[str], draws: Draws) -> Placed:
    """Needles before different lines at random, in the order given."""
    places = sorted(draws.sample(range(len(lines)), len(needles)))
    return merge(lines, list(zip(places, needles, strict=True)), "\n")


def merge(pieces: Seq[str], needles: Seq[tuple[int, str]], joint: str) -> Placed:
    """Pieces joined, with each needle before the piece of its number (or at the end)."""
    before: dict[int, list[int]] = {}
    for i, (place, _) in enumerate(needles):
        before.setdefault(place, []).append(i)
    out: list[str] = []
    at, length = [0] * len(needles), 0
    for place in range(len(pieces) + 1):
        for i in before.get(place, []):
            at[i] = length
            out.append(needles[i][1])
            length += len(needles[i][1]) + len(joint)
        if place < len(pieces):
            out.append(pieces[place])
            length += len(pieces[place]) + len(joint)
    return Placed(joint.join(out), tuple(at))
