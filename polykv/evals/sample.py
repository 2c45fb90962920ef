"""One question with its answer, and what a task is: something that makes questions of any size.

A task is a pure function: the same seed, number and size give the same text everywhere (`polykv.evals.draws`). How long
that text is in tokens depends on a model, which comes in as a `Count`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

# Turns of a conversation, (role, content) each.
Turns = tuple[tuple[str, str], ...]


class Count(Protocol):
    """Tokens of a conversation as a model will read it: earlier turns, the user's turn, the beginning of the answer.

    raw: without the chat template, if the model has one.
    """

    def __call__(self, prompt: str, prefix: str = "", history: Turns = (), raw: bool = False) -> int: ...


@dataclass(frozen=True)
class Draft:
    """A question as text.

    prompt: the user's turn. prefix: how the answer begins; it is given, not generated, and ends without a blank.
    expected: what an answer must contain. at: where in the prompt each of these stands, in characters; with a history:
    in which of its turns; empty: nowhere. span: where in the prompt the filling begins and ends; None: it is all of the
    prompt. history: earlier turns. raw: text to continue, not a turn of a chat. meta: facts for scoring,
    JSON-serialisable.
    """

    prompt: str
    prefix: str
    expected: tuple[str, ...]
    at: tuple[int, ...]
    span: tuple[int, int] | None = None
    history: Turns = ()
    raw: bool = False
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """A draft that was fitted to a length.

    index: its number among the samples of a task, length and seed. size: units of filling (lines, words, turns).
    length: what prompt and answer may take together, in tokens. budget: longest answer in tokens. tokens: of the whole
    prompt as it will be run, template and prefix included. depths: where each expected text stands, 0 (beginning of the
    filling) to 1 (its end).
    """

    task: str
    seed: int
    index: int
    size: int
    length: int
    budget: int
    tokens: int
    depths: tuple[float, ...]
    draft: Draft

    @property
    def prompt(self) -> str:
        return self.draft.prompt

    @property
    def prefix(self) -> str:
        return self.draft.prefix

    @property
    def expected(self) -> tuple[str, ...]:
        return self.draft.expected

    @property
    def meta(self) -> dict[str, Any]:
        return self.draft.meta


class Task(Protocol):
    """Makes drafts.

    name: unique. metric: rule of `polykv.evals.scoring`. budget: tokens that an answer may take. least: the smallest
    size there can be. unit: what sizes count.
    """

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def budget(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def unit(self) -> str: ...

    def step(self, length: int) -> int:
        """Units by which a size is estimated, and made smaller when a sample does not fit."""
        ...

    def draft(self, seed: int, index: int, size: int) -> Draft:
        """Question number `index` with `size` units of filling."""
        ...


def transcript(history: Turns, prompt: str) -> str:
    """A conversation as plain text, for models without a chat template.

    >>> transcript((("user", "Hi"), ("assistant", "Hello")), "Bye")
    'User: Hi\\n\\nAssistant: Hello\\n\\nUser: Bye\\n\\nAssistant:'
    >>> transcript((), "Bye")
    'Bye'
    """
    if not history:
        return prompt
    turns = [f"{role.capitalize()}: {content}" for role, content in (*history, ("user", prompt))]
    return "\n\n".join([*turns, "Assistant:"])


def begun(text: str, prefix: str) -> str:
    """Plain text followed by the beginning of its answer."""
    return f"{text} {prefix}" if prefix else text


def plain(count_tokens: Callable[[str], int]) -> Count:
    """A `Count` for models without a chat template, of a function that counts the tokens of a text."""

    def count(prompt: str, prefix: str = "", history: Turns = (), raw: bool = False) -> int:
        return count_tokens(begun(transcript(history, prompt), prefix))

    return count
