"""Figures of many answers: scores with intervals, what did not count, where in the prompt things were found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from polykv.evals.answers import Answer
from polykv.evals.result import Cell
from polykv.evals.scoring import Mark
from polykv.evals.statistics import wilson

# Depth bins, as shares of the prompt.
BINS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))
# What each answer is worth; None where there is no data.
Marks = Seq[Mark | None]


def whole(kv: str, metric: str, answers: Seq[Answer], marks: Marks) -> Cell:
    """The cell of all answers of one task and length.

    Scores are 0 to 100. The interval is Wilson's for the mean score: among all scores of 0 to 1 with a given mean, hits
    and misses vary most, so it is no narrower than it must be for shares.
    """
    sample = answers[0].sample
    scored = [m for m in marks if m is not None]
    named = [m.precision for m in scored if m.precision is not None]
    return {
        "kv": kv,
        "task": sample.task,
        "length": sample.length,
        "metric": metric,
        "budget": sample.budget,
        "n": len(scored),
        "no_data": len(answers) - len(scored),
        "capped": sum(a.capped for a in answers),
        **_score([m.score for m in scored]),
        "precision": round(100 * sum(named) / len(named), 2) if named else None,
        "figures": _figures(scored),
        "mode": answers[0].mode,
        "seconds": round(sum(a.seconds for a in answers), 3),
        "by_depth": by_depth(answers, marks),
        "answers": [_told(a, m) for a, m in zip(answers, marks, strict=True)],
    }


def by_depth(answers: Seq[Answer], marks: Marks) -> list[Cell]:
    """Scores of the expected texts by where they stand, a bin each; bins with none have n = 0 and no score. Nothing for
    tasks that hide nothing."""
    if not answers[0].sample.depths:
        return []
    parts = [
        (depth, part)
        for a, m in zip(answers, marks, strict=True)
        if m is not None
        for depth, part in zip(a.sample.depths, m.parts, strict=True)
    ]
    found = []
    for low, high in BINS:
        inside = [part for depth, part in parts if low <= depth < high or depth == high == 1.0]
        found.append({"from": low, "to": high, "n": len(inside), **_score(inside)})
    return found


def compared(control: Marks, marks: Marks) -> Cell:
    """How marks differ from those of a control on the same samples, where both have data.

    p: how likely so uneven a split of worse and better is by chance (sign test, two-sided); 1 where nothing differs.

    >>> compared([Mark(1, (1,))] * 6, [Mark(0, (0,))] * 6)
    {'n': 6, 'difference': -100.0, 'worse': 6, 'better': 0, 'p': 0.0312}
    """
    both = [b.score - a.score for a, b in zip(control, marks, strict=True) if a is not None and b is not None]
    worse, better = sum(d < 0 for d in both), sum(d > 0 for d in both)
    tail = sum(math.comb(worse + better, i) for i in range(min(worse, better) + 1)) / 2 ** (worse + better)
    return {
        "n": len(both),
        "difference": round(100 * sum(both) / len(both), 2) if both else None,
        "worse": worse,
        "better": better,
        "p": round(min(1.0, 2 * tail), 4),
    }


def _score(scores: Seq[float]) -> Cell:
    if not scores:
        return {"score": None, "interval": [0.0, 100.0]}
    low, high = wilson(sum(scores), len(scores))
    mean = sum(scores) / len(scores)
    return {"score": round(100 * mean, 2), "interval": [round(100 * low, 2), round(100 * high, 2)]}


def _figures(marks: Iterable[Mark]) -> dict[str, float]:
    """Means of the figures of a rule."""
    values: dict[str, list[float]] = {}
    for m in marks:
        for name, value in m.figures.items():
            values.setdefault(name, []).append(value)
    return {name: round(sum(v) / len(v), 4) for name, v in values.items()}


def _told(answer: Answer, mark: Mark | None) -> Cell:
    """One answer, to look at when a score surprises."""
    s = answer.sample
    return {
        "index": s.index,
        "tokens": s.tokens,
        "depths": [round(d, 4) for d in s.depths],
        "expected": list(s.expected),
        "text": answer.text,
        "generated": answer.tokens,
        "finish": answer.finish.value,
        "seconds": round(answer.seconds, 3),
        "score": None if mark is None else round(mark.score, 4),
        "precision": None if mark is None else mark.precision,
        **({} if mark is None else mark.figures),
    }
