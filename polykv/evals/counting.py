"""Count-up: how far a model goes on counting before a number is wrong.

Every number depends on the one before and on nothing else, so damage to the K/V of recent tokens shows early. The
measure calibrates itself: the same model with exact K/V says how far it gets at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from polykv.evals.draws import Draws
from polykv.evals.sample import Draft

# Numbers that are given; the next is the first one expected.
GIVEN = 8
# The first sample counts from 1, the others from somewhere below.
STARTS = 900
# Fewer numbers than that by the control, and the comparison says nothing.
VACUOUS = 20
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Counting:
    """budget: tokens that the model may count on for."""

    budget: int = 1600
    name: str = "countup"
    least: int = 1
    unit: str = "starts"
    metric: str = "longest_run"

    def step(self, length: int) -> int:
        return 1

    def draft(self, seed: int, index: int, size: int) -> Draft:
        """The size has no meaning here: nothing is hidden."""
        start = 1 if index == 0 else 1 + Draws(seed, self.name, index, "start").below(STARTS)
        given = [str(start + i) for i in range(GIVEN)]
        # Text to continue, whether or not the model has a chat template: no turn asks for it.
        text = ", ".join(given) + ","
        return Draft(prompt=text, prefix="", expected=(str(start + GIVEN),), at=(), raw=True, meta={"start": start})


def longest_run(text: str, start: int) -> int:
    """How many whole numbers in a row, the first of them `start`, are each one more than the one before; of several
    such runs the longest, for a model may begin again.

    >>> longest_run("9, 10, 11, 9, 10, 11, 12, 14", 9), longest_run("10, 11", 9), longest_run("", 9)
    (4, 0, 0)
    """
    best = run = 0
    # Longer than any number that counting reaches, and Python refuses to read very long ones.
    for digits in _NUMBER.findall(text):
        value = int(digits) if len(digits) <= 12 else -1
        if value == start + run:
            run += 1
        else:
            run = 1 if value == start else 0
        best = max(best, run)
    return best
