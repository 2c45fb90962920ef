"""Short pieces of writing from a grammar: what an assistant wrote in the conversations of `polykv.evals.rewrites`.

Pieces of the same format and topic differ by content only, as several answers of a model to the same request would.
"""

from __future__ import annotations

from polykv.evals.draws import Draws
from polykv.evals.words import ADJECTIVES, NOUNS, listed

# The metric is quadratic in the length of a text; no piece is longer, in characters.
LONGEST = 2000
SENTENCES = (4, 7)

# Formats, and how a piece of each begins.
FORMATS: dict[str, str] = {
    "poem": "O {topic}, so {adj} and so {adj2},",
    "riddle": "I am near {topic}, yet nobody sees me.",
    "short story": "It was a {adj} evening when {name} first thought of {topic}.",
    "news report": "{place}, {month} {day}: {topic} kept the whole town busy yesterday.",
    "letter": "Dear {name}, you asked me about {topic}.",
    "speech": "Friends of {place}, let me speak of {topic}.",
    "song": "Sing it low, sing it {adj}, sing of {topic},",
    "diary entry": "{month} {day}. All day long I had {topic} on my mind.",
    "review": "{stars} of five stars for everything about {topic}.",
    "recipe": "For {number} guests who like {topic}, take a {adj} {noun}.",
}
TOPICS = listed(
    "autumn rain, old bridges, night trains, lighthouses, lost keys, wild geese, mountain paths, paper boats, "
    "rusty bells, street musicians, winter coats, garden walls, ripe pears, broken clocks, silent libraries, "
    "market days, slow rivers, sea fog, wooden toys, tall ladders, desert stars, chess players, honest sailors, "
    "warm bread, empty theatres, stray cats, morning tea, glass marbles, fishing nets, country fairs",
    ", ",
)
NAMES = listed("Ada Bruno Clara David Elena Felix Greta Hugo Irene Jonas Katja Lukas Mira Nils Olga Pavel")
PLACES = listed("Brellin Oststrand Marrowhill Tessing Calder Vintry Lowfarn Quillon Harrowgate Sundby")
MONTHS = listed("January March April May June August October November")
LINES = (
    "{name} keeps a {adj} {noun} by the door for it.",
    "In {place} they count {number} of them before breakfast.",
    "Nobody had told {name} how {adj} a {noun} can be.",
    "The {adj} {noun} stood beside the {adj2} {noun2} and said nothing.",
    "It takes {number} days to walk from {place} to the {noun}.",
    "{name} gave the {noun} to {name2}, who never gave it back.",
    "Since {month} the {noun} has been {adj}, and since {day} it has been {adj2}.",
    "What is {adj} today was {adj2} in the days of {name}.",
    "Ask {name} in {place}: a {noun} is worth {number} of the other kind.",
    "Under the {noun} there is a {noun2}, and under that only something {adj}.",
    "They painted the {noun} {adj}, then {adj2}, then {adj} again.",
    "Every {month} somebody leaves a {adj} {noun} at the gate of {place}.",
    "{name} laughed, {name2} wept, and the {noun} fell over.",
    "There were {number} reasons, and the {adj} {noun} was the least of them.",
    "Bring a {noun}, leave the {noun2}, and be {adj} about it.",
    "By evening the {noun} of {name} was as {adj} as the hills of {place}.",
)


def piece(form: str, topic: str, draws: Draws) -> str:
    """A text of a format about a topic, at most LONGEST characters."""
    low, high = SENTENCES
    lines = [FORMATS[form], *draws.sample(LINES, low + draws.below(high - low + 1))]
    return " ".join(_fill(line, topic, draws) for line in lines)[:LONGEST]


def _fill(line: str, topic: str, draws: Draws) -> str:
    adjectives, nouns, names = draws.sample(ADJECTIVES, 2), draws.sample(NOUNS, 2), draws.sample(NAMES, 2)
    return line.format(
        topic=topic,
        adj=adjectives[0],
        adj2=adjectives[1],
        noun=nouns[0],
        noun2=nouns[1],
        name=names[0],
        name2=names[1],
        place=draws.choice(PLACES),
        month=draws.choice(MONTHS),
        day=str(1 + draws.below(28)),
        number=str(2 + draws.below(97)),
        stars=str(1 + draws.below(5)),
    )
