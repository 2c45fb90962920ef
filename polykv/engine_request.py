"""What goes into the engine and what comes out: `Request`, `Generation`, `Stats`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from polykv.cache.sequence import Sequence
from polykv.engine_shift import NO_END, NOT_OWN, Past, check_shift
from polykv.engine_text import AnswerText
from polykv.errors import ConfigError, PromptError
from polykv.sampling import SamplingParams

# Enough for any real use; a longer list is a mistake or an attack (every token is compared with every string).
MAX_STOP_STRINGS = 64
NO_TOKENS = "the prompt is empty: it has no tokens, and at least one is needed to predict the next"


class Finish(Enum):
    """Why a generation ended."""

    EOG = "eog"  # the model ended its turn
    STOP = "stop"  # a stop string appeared
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context is full
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Stats:
    """Measured facts of one generation.

    prompt_n: tokens of the prompt, of which cache_n were found in the cache. prefill_s, decode_s: seconds of the steps
    that the request took part in before and after its first token; steps counts both. shifts: how often tokens were
    dropped from a full context (`polykv.engine_shift`), shifted_cells: how many; reading the others again is part of
    decode_s.
    """

    prompt_n: int
    cache_n: int
    generated_n: int
    steps: int
    prefill_s: float
    decode_s: float
    shifts: int = 0
    shifted_cells: int = 0

    @property
    def prefill_tok_s(self) -> float:
        """Prompt tokens computed per second; 0 when nothing was timed."""
        return (self.prompt_n - self.cache_n) / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tok_s(self) -> float:
        """Tokens per second of this sequence after its first token; 0 when nothing was timed."""
        return max(self.generated_n - 1, 0) / self.decode_s if self.decode_s else 0.0

    def as_dict(self) -> dict[str, float]:
        """Plain numbers for JSON."""
        return {
            "prompt_n": self.prompt_n,
            "cache_n": self.cache_n,
            "generated_n": self.generated_n,
            "steps": self.steps,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "prefill_tok_s": self.prefill_tok_s,
            "decode_tok_s": self.decode_tok_s,
            "shifts": self.shifts,
            "shifted_cells": self.shifted_cells,
        }


@dataclass(frozen=True)
class Generation:
    """One finished generation.

    tokens: the ids that were chosen, the one that ended the turn included. text: without that one.
    """

    text: str
    tokens: list[int]
    stats: Stats
    finish_reason: Finish


def _count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0


@dataclass(eq=False)
class Request:
    """One prompt and the rules for its continuation; the engine fills the rest.

    prompt: all token ids of the sequence. sequence: continue this one, whose tokens must be the beginning of the
    prompt; it stays the caller's. None: the engine makes one, reusing cached prefixes, and frees it at the end.
    max_tokens: None = until the context is full; 0 = prefill only. on_prefill(done, total) is called between the steps
    of a prefill, in tokens of the prompt, by whoever waits for the request; what it raises ends the request.
    shift: when the context is full, keep that many tokens from its beginning and the later half of the others, and go
    on (`polykv.engine_shift`); only without a `sequence`. None: end there.
    """

    prompt: list[int]
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    ignore_eog: bool = False
    sequence: Sequence | None = None
    on_prefill: Callable[[int, int], None] | None = None
    shift: int | None = None

    # Written by the engine.
    ids: list[int] = field(init=False)  # prompt and chosen tokens
    limit: int = field(init=False, default=0)  # most cells that it may need
    past: Past = field(init=False, default=Past())  # which of ids are in the context
    start: int | None = field(init=False, default=None)  # tokens in the sequence at admission; None = not admitted
    cache_n: int = field(init=False, default=0)
    steps: int = field(init=False, default=0)
    read: int = field(init=False, default=0)  # tokens in the cache after the last step of the prefill
    reported: int = field(init=False, default=0)  # of those, the ones that on_prefill was told
    prefill_s: float = field(init=False, default=0.0)
    decode_s: float = field(init=False, default=0.0)
    ending: Finish | None = field(init=False, default=None)  # its end has begun
    finish: Finish | None = field(init=False, default=None)
    error: Exception | None = field(init=False, default=None)  # why it could not go on
    cancelled: bool = field(init=False, default=False)
    owned: bool = field(init=False)  # whether the engine frees the sequence
    text: AnswerText | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise PromptError(NO_TOKENS)
        if self.max_tokens is not None and not _count(self.max_tokens):
            raise ConfigError(f"max_tokens is {self.max_tokens!r}; it must be a whole number >= 0")
        if isinstance(self.stop, str):
            self.stop = (self.stop,)
        self.stop = tuple(self.stop)
        if len(self.stop) > MAX_STOP_STRINGS or not all(isinstance(s, str) and s for s in self.stop):
            raise ConfigError(f"stop must be at most {MAX_STOP_STRINGS} strings that are not empty")
        self._check_shift()
        self.ids = list(self.prompt)
        self.owned = self.sequence is None

    def _check_shift(self) -> None:
        if self.shift is None:
            return
        check_shift(self.shift)
        self.shift = int(self.shift)
        if self.sequence is not None:
            raise ConfigError(NOT_OWN)
        if self.max_tokens is None:
            raise ConfigError(NO_END)

    @property
    def generated(self) -> list[int]:
        """Tokens chosen so far."""
        return self.ids[len(self.prompt) :]

    @property
    def n_generated(self) -> int:
        return len(self.ids) - len(self.prompt)

    @property
    def n_cells(self) -> int:
        """Tokens in the context: those in the cache, and those that are to be read."""
        return len(self.ids) - self.past.dropped

    def cells(self, start: int = 0, n: int | None = None) -> list[int]:
        """n tokens of the context from position `start` on; None: all of them."""
        return self.past.cells(self.ids, start, n)

    @property
    def done(self) -> bool:
        return self.finish is not None

    def cancel(self) -> None:
        """End the generation before its next step; what was generated so far stays available."""
        self.cancelled = True

    def take(self) -> str:
        """Text produced since the last call."""
        return "" if self.text is None else self.text.take()

    def result(self) -> Generation:
        """The generation; only after `done`."""
        if self.finish is None:
            raise ConfigError("the request is still running")
        stats = Stats(
            len(self.prompt),
            self.cache_n,
            self.n_generated,
            self.steps,
            self.prefill_s,
            self.decode_s,
            self.past.shifts,
            self.past.dropped,
        )
        return Generation("" if self.text is None else self.text.whole, self.generated, stats, self.finish)
