"""Needles in a haystack: the eight tasks of RULER (Hsieh et al., 2024, arXiv:2404.06654).

Sentences that state a magic value for a key are hidden in a text; the question asks for the values of some keys. What
is hidden how often and where is as in RULER; the words of instruction and question are our own, and so is the random
stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from polykv.errors import ConfigError
from polykv.evals.draws import Draws
from polykv.evals.haystack import NOISE, Essay, Placed, in_lines, in_text
from polykv.evals.sample import Draft
from polykv.evals.words import Distinct

BUDGET = 128
# task -> (haystack, kind of keys, kind of values, keys, values of each key, keys that are asked for)
TASKS: dict[str, tuple[str, str, str, int, int, int]] = {
    "niah_single_1": ("noise", "words", "numbers", 1, 1, 1),
    "niah_single_2": ("essay", "words", "numbers", 1, 1, 1),
    "niah_single_3": ("essay", "words", "uuids", 1, 1, 1),
    "niah_multikey_1": ("essay", "words", "numbers", 4, 1, 1),
    "niah_multikey_2": ("needle", "words", "numbers", 1, 1, 1),
    "niah_multikey_3": ("needle", "uuids", "uuids", 1, 1, 1),
    "niah_multivalue": ("essay", "words", "numbers", 1, 4, 1),
    "niah_multiquery": ("essay", "words", "numbers", 1, 1, 4),
}


@dataclass(frozen=True)
class Niah:
    """One such task. keys, values, queries: see TASKS. essay: the running text, for the haystack of that name.

    depths: where the needle of sample i stands, depths[i % len(depths)] (0 to 1); none: at random, as in RULER.
    """

    name: str
    haystack: str
    key_kind: str
    value_kind: str
    keys: int
    values: int
    queries: int
    essay: Essay
    depths: tuple[float, ...] = ()
    budget: int = BUDGET
    metric: str = "string_match_all"

    @property
    def needles(self) -> int:
        return max(self.keys, self.queries) * self.values

    @property
    def least(self) -> int:
        return 1 if self.haystack == "essay" else self.needles

    @property
    def unit(self) -> str:
        return "words" if self.haystack == "essay" else "lines"

    def step(self, length: int) -> int:
        if self.haystack == "essay":
            return 500
        return 5 if length < 4096 else 25

    def draft(self, seed: int, index: int, size: int) -> Draft:
        keys = Distinct(Draws(seed, self.name, index, "keys"), self.key_kind)
        values = Distinct(Draws(seed, self.name, index, "values"), self.value_kind)
        hidden = {keys.next(): [values.next() for _ in range(self.values)] for _ in range(max(self.keys, self.queries))}
        needles = [(needle(self.value_kind, k, v), v) for k, vs in hidden.items() for v in vs]
        needles = Draws(seed, "order").shuffled(needles)
        placed = self._hide([text for text, _ in needles], keys, values, seed, index, size)
        asked = Draws(seed, self.name, index, "query").sample(list(hidden), self.queries)
        answers = tuple(v for k in asked for v in hidden[k])
        words = Words.of(self.value_kind, single=self.queries * self.values == 1)
        head = words.instruction + "\n"
        query = enumeration(asked)
        where = {v: at + text.rindex(v) for at, (text, v) in zip(placed.at, needles, strict=True)}
        return Draft(
            prompt=f"{head}{placed.text}\n{words.question.format(query)}",
            prefix=words.prefix.format(query),
            expected=answers,
            at=tuple(len(head) + where[v] for v in answers),
            span=(len(head), len(head) + len(placed.text)),
            meta={"kind": self.value_kind, "keys": asked},
        )

    def _hide(self, needles: Seq[str], keys: Distinct, values: Distinct, seed: int, index: int, size: int) -> Placed:
        depth = self.depths[index % len(self.depths)] if self.depths else None
        draws = Draws(seed, self.name, index, "places", size)
        if self.haystack == "essay":
            return in_text(self.essay.sentences(size), needles, draws, depth)
        if self.haystack == "noise":
            return in_lines([NOISE] * size, needles, draws, depth)
        others = [needle(self.value_kind, keys.next(), values.next()) for _ in range(size)]
        return in_lines(others, needles, draws, depth)


@dataclass(frozen=True)
class Words:
    """What is said around a haystack; `{}` stands for the keys asked for."""

    instruction: str
    question: str
    prefix: str

    @staticmethod
    def of(kind: str, *, single: bool) -> Words:
        """For values of a kind. single: one value is asked for, so everything is in the singular."""
        if single:
            one = kind.removesuffix("s")
            return Words(
                f"A special magic {one} is hidden in the following text. Memorize it: you will be asked for the {one} "
                "afterwards.",
                f"What is the special magic {one} for {{}} in the text above?",
                f"The special magic {one} for {{}} in the text above is",
            )
        return Words(
            f"Some special magic {kind} are hidden in the following text. Memorize them: you will be asked for the "
            f"{kind} afterwards.",
            f"What are all the special magic {kind} for {{}} in the text above?",
            f"The special magic {kind} for {{}} in the text above are",
        )


def needle(kind: str, key: str, value: str) -> str:
    """The sentence that states a value.

    >>> needle("numbers", "calm-otter", "1234567")
    'One of the special magic numbers for calm-otter is: 1234567.'
    """
    return f"One of the special magic {kind} for {key} is: {value}."


def enumeration(names: Seq[str]) -> str:
    """
    >>> enumeration(["a"]), enumeration(["a", "b", "c"])
    ('a', 'a, b, and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, and {names[-1]}"


def niah(names: Iterable[str], essay: Essay, depths: tuple[float, ...] = ()) -> list[Niah]:
    """Tasks by name. Raises ConfigError for a name that is not in TASKS, and for depths where several needles are."""
    tasks = []
    for name in names:
        if name not in TASKS:
            raise ConfigError(f"unknown task {name!r:.60}; known: {', '.join(TASKS)}")
        task = Niah(name, *TASKS[name], essay=essay, depths=depths)
        if depths and task.needles > 1:
            raise ConfigError(f"{name} hides {task.needles} needles at places of their own: depths cannot be given")
        tasks.append(task)
    return tasks
