"""Variable tracking, RULER's task `vt`: a number is handed on from variable to variable; which ones have it?

One chain of five variables is hidden in lines of filling, each statement somewhere after the one before. A worked
example goes first, with names and number of its own in every sample.
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.evals.draws import Draws
from polykv.evals.haystack import NOISE, in_order
from polykv.evals.sample import Draft

HOPS = 4
# Five names of five capitals take about 30 tokens, which is also upstream's newest limit; 120, its older one, does not
# punish a model that says a few words first.
BUDGET = 120
# Lines of filling in the worked example. Upstream fits it to 500 tokens, the room for an answer included; with these
# lines it has 422 for SmolLM2. A fixed number keeps samples the same for all models; long chains need more lines.
EXAMPLE_LINES = 10
# Letters in a name, and in those of the example, so that the two are never mixed up.
LETTERS, EXAMPLE_LETTERS = 5, 3


@dataclass(frozen=True)
class Tracking:
    """example: put a worked example first."""

    hops: int = HOPS
    example: bool = True
    name: str = "vt"
    budget: int = BUDGET
    unit: str = "lines"
    metric: str = "string_match_all"

    @property
    def least(self) -> int:
        return self.hops + 1

    def step(self, length: int) -> int:
        return 10 if self.example and length >= 4096 else 5

    def draft(self, seed: int, index: int, size: int) -> Draft:
        head = ""
        if self.example:
            shown = _Chain.of(Draws(seed, self.name, index, "example"), self.hops, EXAMPLE_LETTERS)
            # The same places in every sample, as upstream, which only changes names and number.
            text, _, _ = _ask(shown, max(EXAMPLE_LINES, self.least), Draws(seed, self.name, "example"))
            head = f"{text} {_prefix(shown)} {' '.join(shown.names)}\n\n"
        chain = _Chain.of(Draws(seed, self.name, index, "chain"), self.hops, LETTERS)
        text, at, span = _ask(chain, size, Draws(seed, self.name, index, "places", size))
        return Draft(
            prompt=head + text,
            prefix=_prefix(chain),
            expected=chain.names,
            at=tuple(len(head) + i for i in at),
            span=(len(head) + span[0], len(head) + span[1]),
            meta={"kind": "names", "value": chain.value},
        )


@dataclass(frozen=True)
class _Chain:
    names: tuple[str, ...]
    value: str

    @staticmethod
    def of(draws: Draws, hops: int, letters: int) -> _Chain:
        names: dict[str, None] = {}
        while len(names) < hops + 1:
            names[draws.letters(letters)] = None
        return _Chain(tuple(names), draws.digits(5))

    def statements(self) -> list[str]:
        pairs = zip(self.names, self.names[1:], strict=False)
        return [f"VAR {self.names[0]} = {self.value}", *(f"VAR {new} = VAR {old} " for old, new in pairs)]


def _ask(chain: _Chain, lines: int, draws: Draws) -> tuple[str, list[int], tuple[int, int]]:
    """Filling with the statements of a chain, and the question; where in it the name of each statement is, and where
    the filling begins and ends."""
    head = "Keep track of the chain of variable assignments that is hidden in the following text.\n\n"
    placed = in_order([NOISE] * lines, chain.statements(), draws)
    # Upstream normalises a blank between a full stop and the end of its line; this filling has none.
    question = f"\nQuestion: Find all variables that are assigned the value {chain.value} in the text above."
    names = [len(head) + i + len("VAR ") for i in placed.at]
    return f"{head}{placed.text}{question}", names, (len(head), len(head) + len(placed.text))


def _prefix(chain: _Chain) -> str:
    return (
        "Answer: According to the chain of variable assignments in the text above, "
        f"{len(chain.names)} variables are assigned the value {chain.value}, they are:"
    )
