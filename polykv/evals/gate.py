"""Does a candidate run choose the tokens of a reference run, and does it matter where it does not?

Pure functions of two recorded runs; `gate_run` records them. A record has, for every generated position, the TOP
likeliest tokens with their log-probabilities. Disagreements of the likeliest token are not all alike:

    tie          either run gives the two tokens nearly equal probability: rounding alone can turn it
    post-answer  both runs have given the answer before; what follows is wording
    real         anything else, and any disagreement of a pair of runs of which only one finds the answer

(spec: logit-equivalence gate.)
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.counted import counted

# Log-probabilities that are recorded per position; nats by which two tokens may differ and still tie.
TOP, TIE_MARGIN = 20, 0.7
# The most that total variation may be on average: of types that lose something, and of runs that should be equal, which
# other orders of summation move by 1e-4 or less.
MAX_TV, EQUAL_TV = 0.30, 0.002


@dataclass(frozen=True, eq=False)
class Step:
    """Prediction at one position: ids and float64 log-probabilities [TOP], the likeliest first."""

    ids: npt.NDArray[np.int64]
    logs: npt.NDArray[np.float64]

    @property
    def top(self) -> int:
        return int(self.ids[0])

    def log(self, token: int) -> float:
        """log p of a token; of one that is not recorded, that of the last one, which it does not exceed."""
        found = np.flatnonzero(self.ids == token)
        return float(self.logs[found[0]] if found.size else self.logs[-1])


@dataclass(frozen=True, eq=False)
class Run:
    """One prompt's recorded run. steps: None where nothing was recorded. ends: text up to and with each position.
    capped: it ended because it had its full length."""

    steps: Seq[Step | None]
    ends: Seq[str]
    capped: bool

    @property
    def text(self) -> str:
        return self.ends[-1] if self.ends else ""


class Kind(Enum):
    """What a disagreement is, see above."""

    TIE = "tie"
    POST_ANSWER = "post_answer"
    REAL = "real"


@dataclass
class PromptVerdict:
    """One prompt: kinds of its disagreements by position, total variation and error of the likeliest token's
    log-probability at compared positions."""

    disagreements: dict[int, Kind] = field(default_factory=dict)
    tv: list[float] = field(default_factory=list)
    top1_error: list[float] = field(default_factory=list)
    missing: int = 0
    recall_mismatch: bool = False
    cap_limited: bool = False

    @property
    def real(self) -> int:
        return sum(kind is Kind.REAL for kind in self.disagreements.values()) + self.recall_mismatch


def total_variation(a: Step, b: Step) -> float:
    """Half the sum of differences over the tokens that either run records; a token that one run does not record counts
    as 0 there, and what is outside the records counts as one more token.

    >>> certain, torn = Step(np.array([7]), np.log([1.0])), Step(np.array([8]), np.log([1.0]))
    >>> total_variation(certain, certain), total_variation(certain, torn)
    (0.0, 1.0)
    """
    p, q = (dict(zip(s.ids.tolist(), np.exp(s.logs).tolist(), strict=True)) for s in (a, b))
    rest = abs(sum(p.values()) - sum(q.values()))
    return float(rest + sum(abs(p.get(t, 0.0) - q.get(t, 0.0)) for t in {*p, *q})) / 2


def compare(reference: Run, candidate: Run, answer: str, *, forced: bool, margin: float = TIE_MARGIN) -> PromptVerdict:
    """Judge one prompt. answer: what both texts should contain; empty when nothing is asked for.

    forced: the candidate was led along the reference's tokens, so every position is compared; otherwise both went their
    own way, and the common beginning and the first difference are.
    """
    found = PromptVerdict()
    found.recall_mismatch = (answer in reference.text) != (answer in candidate.text)
    loser = candidate if answer in reference.text else reference
    found.cap_limited = found.recall_mismatch and loser.capped
    told = max(_told(reference, answer), _told(candidate, answer))
    for i, (r, c) in enumerate(zip(reference.steps, candidate.steps, strict=False)):
        if r is None or c is None:
            found.missing += 1
            continue
        found.tv.append(total_variation(r, c))
        found.top1_error.append(abs(r.log(r.top) - c.log(r.top)))
        if r.top != c.top:
            found.disagreements[i] = _kind(r, c, margin, post=i > told, recall=not found.recall_mismatch)
            if not forced:
                break
    return found


def _told(run: Run, answer: str) -> float:
    """The position at which the answer is complete; infinite when it never is, or there is none."""
    if not answer:
        return float("inf")
    return next((float(i) for i, text in enumerate(run.ends) if answer in text), float("inf"))


def _kind(r: Step, c: Step, margin: float, *, post: bool, recall: bool) -> Kind:
    if not recall:
        return Kind.REAL
    if r.log(r.top) - r.log(c.top) < margin or c.log(c.top) - c.log(r.top) < margin:
        return Kind.TIE
    return Kind.POST_ANSWER if post else Kind.REAL


def summary(prompts: list[PromptVerdict], bar: float, max_tv: float = MAX_TV) -> dict[str, Any]:
    """All figures of a candidate as one JSON-serialisable cell. bar: the share of prompts with a real disagreement that
    passes, 0 for runs that should be equal."""
    tv = np.array([x for p in prompts for x in p.tv])
    errors = [x for p in prompts for x in p.top1_error]
    kinds = [kind for p in prompts for kind in p.disagreements.values()]
    n, positions = len(prompts), tv.size
    real = sum(p.real > 0 for p in prompts) / n if n else 1.0
    mean_tv = float(tv.mean()) if positions else 1.0
    mismatches = sum(p.recall_mismatch for p in prompts)
    return {
        "passes": bool(positions) and real <= bar and mismatches == 0 and mean_tv < max_tv,
        "prompts": n,
        "positions": positions,
        "real_frac": real,
        "real_frac_tokens": kinds.count(Kind.REAL) / positions if positions else 1.0,
        "frac_full_agree": sum(not p.disagreements for p in prompts) / n if n else 0.0,
        "recall_mismatch": mismatches,
        "cap_limited": sum(p.cap_limited for p in prompts),
        "mean_tv": mean_tv,
        "p95_tv": float(np.quantile(tv, 0.95)) if positions else 1.0,
        "top1_mae": float(np.mean(errors)) if errors else None,
        "n_missing": sum(p.missing for p in prompts),
        **{kind.value: kinds.count(kind) for kind in Kind},
    }


def cut_off(cells: Iterable[dict[str, Any]]) -> list[str]:
    """What has to be known about answers that one run of a pair lacks only because it had used up its tokens.

    >>> cut_off([{"kv": "f16", "recall_mismatch": 3, "cap_limited": 2}])
    ['f16: of 3 answers that only one of the runs gives, 2 were cut off by --tokens: they may only be late, take more']
    """
    return [
        f"{c['kv']}: of {counted(c['recall_mismatch'], 'answer')} that only one of the runs gives, {c['cap_limited']} "
        f"{'was' if c['cap_limited'] == 1 else 'were'} cut off by --tokens: they may only be late, take more"
        for c in cells
        if c["cap_limited"]
    ]
