"""Recording runs for the gate: greedy, or led along the tokens of another run.

All prompts of an arm decode together, one row each per step: rows do not influence each other, and decoding uses other
kernels than reading a text does. Predictions are those of steps of one token, but for the first, which is the prompt's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config
from polykv.evals.arms import Arm, Setting
from polykv.evals.gate import TOP, Run, Step
from polykv.model.runner import Logits, Runner
from polykv.text.tokenizer import Tokenizer

CHUNK = 512
Damage = Callable[[KVPool, Sequence], None]


@dataclass(frozen=True)
class GatePrompt:
    """ids of a prompt, and the text that an answer should contain (empty: none)."""

    ids: tuple[int, ...]
    answer: str


@dataclass(frozen=True, eq=False)
class Recorded:
    """Runs of one arm, and the token that was read after each recorded position, by prompt."""

    runs: list[Run]
    tokens: list[list[int]]

    def equals(self, other: Recorded) -> bool:
        """Whether all recorded numbers are the same, bit for bit."""
        return self.tokens == other.tokens and all(
            len(a.steps) == len(b.steps) and all(_same(s, t) for s, t in zip(a.steps, b.steps, strict=True))
            for a, b in zip(self.runs, other.runs, strict=True)
        )


def record(
    setting: Setting,
    arm: Arm,
    prompts: list[GatePrompt],
    length: int,
    *,
    lead: Recorded | None = None,
    damage: Damage | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Recorded:
    """Predictions of at most `length` positions after every prompt.

    Greedy up to the end of a turn; with `lead`, along the tokens of that run instead. damage: done to every prompt's
    cache after it was read. on_progress(done, total) counts tokens, of prompts and after them.
    """
    tokenizer = Tokenizer.from_gguf(setting.model.gguf.metadata)
    total = sum(len(p.ids) for p in prompts) + length * len(prompts)
    config = cache_config(setting.ops, arm.tiers)
    room = sum(len(p.ids) + length + config.block_size for p in prompts)
    pool = KVPool(
        setting.ops,
        setting.model.config,
        config,
        fingerprint=setting.model.fingerprint,
        max_tokens=room,
    )
    pool.equalize(arm.calibration)
    runner = Runner(setting.ops, setting.model, pool, setting.activations)
    tracks = [_Track(Sequence(pool), None if lead is None else lead.tokens[i]) for i in range(len(prompts))]
    done = 0
    for prompt, track in zip(prompts, tracks, strict=True):
        for at in range(0, len(prompt.ids) - 1, CHUNK):
            part = list(prompt.ids[at : min(at + CHUNK, len(prompt.ids) - 1)])
            runner.step([(track.sequence, part)], Logits.NONE)
            done += len(part)
            if on_progress:
                on_progress(done, total)
        if damage is not None:
            damage(pool, track.sequence)
        track.next = prompt.ids[-1]
    for i in range(length):
        live = [t for t in tracks if not t.ended]
        if not live:
            break
        logits = runner.step([(t.sequence, [t.next]) for t in live], Logits.LAST)
        for track, row in zip(live, logits, strict=True):
            track.take(_step(row), tokenizer.eog, length)
        if on_progress:
            on_progress(done + (i + 1) * len(tracks), total)
    return Recorded([t.run(tokenizer) for t in tracks], [t.tokens for t in tracks])


class _Track:
    """One prompt while it is recorded. next: the token that its next step reads."""

    def __init__(self, sequence: Sequence, lead: list[int] | None) -> None:
        self.sequence, self.lead, self.next, self.ended, self.capped = sequence, lead, -1, False, False
        self.steps: list[Step] = []
        self.tokens: list[int] = []

    def take(self, step: Step, eog: frozenset[int], length: int) -> None:
        self.steps.append(step)
        self.next = step.top if self.lead is None else self.lead[len(self.tokens)]
        self.tokens.append(self.next)
        end = self.next in eog
        self.capped = not end and len(self.tokens) == length
        self.ended = end or self.capped or (self.lead is not None and len(self.tokens) == len(self.lead))

    def run(self, tokenizer: Tokenizer) -> Run:
        """Its text is what it would say: the likeliest token of every position."""
        said = [s.top for s in self.steps]
        ends = [tokenizer.decode([t for t in said[: i + 1] if t not in tokenizer.eog]) for i in range(len(said))]
        return Run(self.steps, ends, self.capped)


def _step(logits: npt.NDArray[np.float32]) -> Step:
    """The TOP likeliest tokens of a row of logits, the first of equals first."""
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    ids = np.argpartition(-x, min(TOP, x.size - 1))[:TOP] if x.size > TOP else np.arange(x.size)
    # Of equals at the border, partition may keep any; the likeliest is always the first of all.
    ids = np.unique(np.append(ids, x.argmax()))
    ids = ids[np.lexsort((ids, -x[ids]))][:TOP]
    return Step(ids, x[ids])


def _same(a: Step | None, b: Step | None) -> bool:
    if a is None or b is None:
        return a is b
    return np.array_equal(a.ids, b.ids) and np.array_equal(a.logs, b.logs)
