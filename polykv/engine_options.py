"""The keyword options that every way of generating text takes, and the `Request` made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TypedDict, Unpack

from polykv.cache.sequence import Sequence
from polykv.engine_request import Request
from polykv.engine_shift import NOT_OWN
from polykv.errors import ConfigError
from polykv.sampling import SamplingParams


class Options(TypedDict, total=False):
    """Options of one generation; the defaults are those of `SamplingParams` (greedy) and 64 tokens."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    penalty_window: int
    seed: int
    stop: tuple[str, ...] | list[str] | str
    ignore_eog: bool
    on_prefill: Callable[[int, int], None] | None
    shift: int | None


_SAMPLING = {f.name for f in fields(SamplingParams)}


def make_request(
    ids: list[int], sequence: Sequence | None = None, more_stop: tuple[str, ...] = (), **options: Unpack[Options]
) -> Request:
    """A request for the tokens after `ids`. more_stop: stop strings besides those of the options.

    Raises ConfigError for an option that does not exist or has a bad value.
    """
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise ConfigError(
            f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(sorted(Options.__annotations__))}"
        )
    stop = options.get("stop", ())
    if not isinstance(stop, str | tuple | list):
        raise ConfigError(f"stop is {stop!r}; it must be a string or a list of strings")
    told = options.get("on_prefill")
    if told is not None and not callable(told):
        raise ConfigError(f"on_prefill is {told!r}; it must be a function of (done, total)")
    return Request(
        ids,
        max_tokens=options.get("max_tokens", 64),
        sampling=SamplingParams(**{k: v for k, v in options.items() if k in _SAMPLING}),  # type: ignore[arg-type]
        stop=((stop,) if isinstance(stop, str) else tuple(stop)) + more_stop,
        ignore_eog=options.get("ignore_eog", False),
        sequence=sequence,
        on_prefill=told,
        shift=options.get("shift"),
    )


def refuse_shift(options: Options) -> None:
    """For generations that continue a sequence of others. Raises ConfigError when they are asked to drop its tokens."""
    if options.get("shift") is not None:
        raise ConfigError(NOT_OWN)
