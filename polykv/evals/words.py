"""Keys and values of needles: words, numbers, UUIDs."""

from __future__ import annotations

from collections.abc import Callable

from polykv.evals.draws import Draws


def listed(text: str, separator: str | None = None) -> tuple[str, ...]:
    """A list that is easier to read as a text.

    >>> listed("red, light blue", ", ")
    ('red', 'light blue')
    """
    return tuple(text.split(separator))


ADJECTIVES = listed(
    """
    able agile amber ample ancient arid autumn bare blue bold brave brief bright brisk broad calm candid clear clever
    cold cool copper crisp curious daring deep distant dry eager early elder even faint fair famous fancy fine firm
    fresh gentle giant glad golden grand green happy hidden hollow honest humble icy idle jolly keen kind large late
    lean light little lively loud lucky mellow mild modest narrow neat noble odd open pale plain polite proud quick
    quiet rare rapid red ripe rough round royal sharp shiny silent silver simple sleepy slow small smooth soft solid
    steady still sunny swift tall tame tidy tiny vivid warm wide wild wise young
    """
)
NOUNS = listed(
    """
    acorn anchor apple arrow badge bakery barn basket beacon bell berry bottle bridge brook bucket button cabin camel
    candle canoe carpet castle cedar cherry clock cloud coin compass copse cradle crane crown dune eagle engine falcon
    feather fence ferry field finch flute forest fountain fox garden glacier goose hammer harbor hazel helmet hill
    island jacket kettle ladder lake lantern lemon lion lizard maple market meadow mirror mountain needle oak orchard
    otter oyster paddle palace pebble pepper piano pillow pine planet plum pocket pond quarry rabbit raven ribbon river
    robin saddle sail salmon shell spoon squirrel stone table tiger tower trumpet turtle valley violin wagon walnut
    willow window
    """
)


def word(draws: Draws) -> str:
    """An adjective and a noun, `calm-otter`."""
    return f"{draws.choice(ADJECTIVES)}-{draws.choice(NOUNS)}"


def long_word(draws: Draws) -> str:
    """Two adjectives and a noun: there are a hundred times as many of these."""
    return f"{draws.choice(ADJECTIVES)}-{word(draws)}"


def number(draws: Draws) -> str:
    """A number of seven digits."""
    return draws.digits(7)


def uuid(draws: Draws) -> str:
    return draws.uuid()


# What a needle may hold -> how one is drawn.
KINDS: dict[str, Callable[[Draws], str]] = {"words": word, "numbers": number, "uuids": uuid}


class Distinct:
    """Draws strings of a kind that were not drawn before."""

    def __init__(self, draws: Draws, kind: str) -> None:
        self._draws, self._make, self._used = draws, KINDS[kind], set[str]()
        # Beyond half of all words a new one takes many draws, and in the end there is none.
        self._enough = len(ADJECTIVES) * len(NOUNS) // 2 if kind == "words" else None

    def next(self) -> str:
        """The next one."""
        if self._enough is not None and len(self._used) >= self._enough:
            self._make, self._enough = long_word, None
        while (found := self._make(self._draws)) in self._used:
            pass
        self._used.add(found)
        return found
