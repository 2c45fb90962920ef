"""Does a text go round in circles?

With a broken cache greedy decoding often ends in the same one or two tokens for ever. A model finds that likely, and
more so the longer it goes on: perplexity does not see it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

# The most tokens that are said again and again. Longer phrases come back in sound greedy texts of small models, too.
PERIOD = 4


def repeated(tokens: Seq[int]) -> float:
    """Share of a text that is its longest run of at most PERIOD tokens said again and again, three times or more.

    >>> repeated([1, 2, 3, 4]), repeated([7, 1, 2, 1, 2, 1, 2, 9]), repeated([])
    (0.0, 0.75, 0.0)
    """
    longest = 0
    for period in range(1, PERIOD + 1):
        same = 0
        for i in range(period, len(tokens)):
            same = same + 1 if tokens[i] == tokens[i - period] else 0
            if same >= 2 * period:
                longest = max(longest, same + period)
    return longest / len(tokens) if tokens else 0.0
