"""Finding one of several equal requests in a conversation: the structure and the metric of OpenAI's MRCR.

A conversation asks for short pieces of writing; 2, 4 or 8 of the requests are the same, word for word. The last turn
asks to repeat the i-th of these pieces after a given string. The texts come from a grammar of our own
(`writings.py`), so scores are not those of the published data set.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from itertools import product

from polykv.counted import counted
from polykv.errors import ConfigError
from polykv.evals.draws import Draws
from polykv.evals.sample import Draft
from polykv.evals.writings import FORMATS, TOPICS, piece

NEEDLES = (2, 4, 8)
MARK = 10
# Twice what the longest pieces take.
BUDGET = 384
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_ALPHANUMERIC = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_REASONING = re.compile(r"\s*<think>.*?</think>\s*", re.S)


@dataclass(frozen=True)
class Rewrites:
    """needles: how many requests are equal. A unit of size is a request with its piece."""

    needles: int
    budget: int = BUDGET
    unit: str = "requests"
    metric: str = "sequence_matcher"

    def __post_init__(self) -> None:
        if self.needles not in NEEDLES:
            asked, known = counted(self.needles, "equal request"), ", ".join(map(str, NEEDLES))
            raise ConfigError(f"{asked}; the task is defined for {known}")

    @property
    def name(self) -> str:
        return f"mrcr_{self.needles}"

    @property
    def least(self) -> int:
        return self.needles

    def step(self, length: int) -> int:
        return 2

    def draft(self, seed: int, index: int, size: int) -> Draft:
        draws = Draws(seed, self.name, index, "requests")
        kinds = draws.shuffled(list(product(FORMATS, TOPICS)))
        wanted, others = kinds[0], kinds[1:]
        chosen = 1 + draws.below(self.needles)
        mark = draws.letters(MARK, _ALPHANUMERIC)
        asked = [wanted] * self.needles + [others[i % len(others)] for i in range(size - self.needles)]
        asked = Draws(seed, self.name, index, "order", size).shuffled(asked)
        history: list[tuple[str, str]] = []
        answers: list[tuple[int, str]] = []
        others_seen = 0
        for kind in asked:
            # A piece is drawn by its number among its like, so it stays the same whatever stands around it.
            same = kind == wanted
            number = len(answers) if same else others_seen
            text = piece(*kind, Draws(seed, self.name, index, "piece", *kind, number))
            others_seen += not same
            history += [("user", request(*kind)), ("assistant", text)]
            if same:
                answers.append((len(history) - 1, text))
        at, text = answers[chosen - 1]
        form, topic = wanted
        return Draft(
            prompt=f"Write {mark} and, right behind it, the {_ORDINALS[chosen - 1]} {form} about {topic} from above, "
            "word for word. Write nothing else.",
            prefix="",
            expected=(mark + text,),
            at=(at,),
            history=tuple(history),
            meta={"mark": mark, "needles": self.needles, "wanted": chosen},
        )


def request(form: str, topic: str) -> str:
    """
    >>> request("poem", "sea fog")
    'Write a poem about sea fog.'
    """
    return f"Write a {form} about {topic}."


def similarity(response: str, expected: str, mark: str) -> float:
    """MRCR's score, 0 to 1: nothing without the mark in front, else how alike the rest is to what was asked for.

    The heuristic that `difflib` applies to texts of 200 and more characters is part of the metric.

    >>> similarity("k3abc", "k3abc", "k3"), similarity("abc", "k3abc", "k3")
    (1.0, 0.0)
    """
    if not response.startswith(mark):
        return 0.0
    matcher = difflib.SequenceMatcher(None, response.removeprefix(mark), expected.removeprefix(mark))
    return matcher.ratio()


def without_reasoning(response: str) -> tuple[str, bool]:
    """The response less what a reasoning model thought first, and whether there was any.

    >>> without_reasoning("<think>hm</think> abc"), without_reasoning("abc")
    (('abc', True), ('abc', False))
    """
    found = _REASONING.match(response)
    return (response[found.end() :], True) if found else (response, False)
