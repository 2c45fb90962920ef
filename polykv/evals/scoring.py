"""What an answer is worth: RULER's substring rule, MRCR's similarity, exact copies, runs of numbers.

Every rule gives a `Mark` with a score of 0 to 1. Nothing here decides whether an answer counts at all (see `answers`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from polykv.evals.copying import TYPES, Fields
from polykv.evals.counting import longest_run
from polykv.evals.rewrites import similarity, without_reasoning
from polykv.evals.sample import Sample

# What an expected text of a kind looks like; whatever else in an answer looks like it was not asked for.
SHAPES: dict[str, re.Pattern[str]] = {
    "numbers": re.compile(r"(?<!\d)\d{7}(?!\d)"),
    "uuids": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I),
    "words": re.compile(r"\b[a-z]+(?:-[a-z]+)+\b", re.I),
    "names": re.compile(r"\b[A-Z]{5}\b"),
}
_CONTROL = re.compile(r"[\x00-\x1f]")
_COPIED = {"id": re.compile(r"[0-9A-Za-z][0-9A-Za-z-]*"), "hex": re.compile(r"[0-9A-Za-z]+")}


@dataclass(frozen=True)
class Mark:
    """score: 0 to 1. parts: the same for every expected text alone. precision: share of what the answer names that was
    asked for; None if it names nothing of the kind. figures: more facts of a rule, numbers by name."""

    score: float
    parts: tuple[float, ...]
    precision: float | None = None
    figures: dict[str, float] = field(default_factory=dict)


def clean(text: str) -> str:
    """RULER's postprocessing: control characters become line breaks, blanks at both ends go.

    >>> clean(" a\\x00b\\n")
    'a\\nb'
    """
    return _CONTROL.sub("\n", text.strip()).strip()


def all_found(text: str, sample: Sample) -> Mark:
    """RULER's `string_match_all`: the share of the expected texts that occur in the answer, in any case.

    Naming everything would score full marks, hence the precision.
    """
    text = clean(text)
    found = tuple(float(e.lower() in text.lower()) for e in sample.expected)
    shape = SHAPES.get(sample.meta["kind"])
    named = {n.lower() for n in shape.findall(text)} if shape else set()
    right = named & {e.lower() for e in sample.expected}
    return Mark(sum(found) / len(found), found, len(right) / len(named) if named else None)


def rewritten(text: str, sample: Sample) -> Mark:
    """MRCR's score. Figures: whether the mark was there, whether the model reasoned first."""
    said, reasoned = without_reasoning(text)
    said = said.strip()
    mark = sample.meta["mark"]
    score = similarity(said, sample.expected[0], mark)
    figures = {"marked": float(said.startswith(mark)), "reasoned": float(reasoned)}
    return Mark(score, (score,), figures=figures)


def counted(text: str, sample: Sample) -> Mark:
    """The longest run. Its score is 1 where there is one; `against` makes it a share of what a control reaches."""
    run = longest_run(text, int(sample.expected[0]))
    return Mark(float(run > 0), (float(run > 0),), figures={"run": float(run)})


def against(mark: Mark, control: Mark) -> Mark:
    """A mark of `counted` with the share of the control's run that it reaches as score."""
    if not control.figures["run"]:
        return mark
    share = min(1.0, mark.figures["run"] / control.figures["run"])
    return replace(mark, score=share, parts=(share,))


def copied(text: str, sample: Sample) -> Mark:
    """A copy counts when not one character is wrong: the first run of characters of which such strings consist must be
    the string. Figures: whether the string is anywhere in the answer."""
    expected = sample.expected[0]
    first = _COPIED[sample.meta["kind"]].search(clean(text))
    right = first is not None and first[0].rstrip("-") == expected
    return Mark(float(right), (float(right),), figures={"anywhere": float(expected in text)})


def structured(text: str, sample: Sample) -> Mark:
    """The first JSON object of the answer must equal the expected one. Figures: it can be read; it has the fields and
    types asked for; the share of fields that are right."""
    value = first_object(sample.prefix + text)
    want = json.loads(sample.expected[0])
    kind = sample.meta["kind"]
    valid = value is not None and (
        fits(value, sample.meta["schema"]) if kind == "json" else is_call(value, sample.meta["tools"])
    )
    got, fields = (value or {}, want) if kind == "json" else (_arguments(value), want["arguments"])
    right = sum(same(got.get(name), wanted) for name, wanted in fields.items()) / len(fields)
    exact = valid and same(value, want)
    figures = {"parsed": float(value is not None), "valid": float(valid), "fields": right}
    return Mark(float(exact), (float(exact),), figures=figures)


RULES: dict[str, Callable[[str, Sample], Mark]] = {
    "string_match_all": all_found,
    "sequence_matcher": rewritten,
    "longest_run": counted,
    "exact_copy": copied,
    "exact_object": structured,
}


# -- JSON ----------------------------------------------------------------------------------------------------------
def first_object(text: str) -> Fields | None:
    """The JSON object that begins at the first brace, whatever follows it; None if there is none.

    Objects that name a field twice and numbers that are none (NaN) are no JSON here.

    >>> first_object('Sure: {"a": 1} there'), first_object('{"a": 1, "a": 2}'), first_object('{"a": NaN}')
    ({'a': 1}, None, None)
    """
    start = text.find("{")
    if start < 0:
        return None
    decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse, strict=True)
    try:
        value, _ = decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> Fields:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a field twice")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(name)


def fits(value: object, schema: dict[str, str]) -> bool:
    """Whether a value is an object with exactly the fields of a schema, each of its type; true is no integer.

    >>> fits({"n": 1}, {"n": "integer"}), fits({"n": True}, {"n": "integer"}), fits({}, {"n": "integer"})
    (True, False, False)
    """
    return (
        isinstance(value, dict)
        and set(value) == set(schema)
        and all(type(value[name]) is TYPES[kind] for name, kind in schema.items())
    )


def is_call(value: object, tools: dict[str, dict[str, str]]) -> bool:
    """Whether a value is a call of one of the tools, with its arguments."""
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        return False
    name = value["name"]
    return isinstance(name, str) and name in tools and fits(value["arguments"], tools[name])


def same(a: object, b: object) -> bool:
    """Equality that tells true from 1, for values of JSON.

    >>> same({"a": 1}, {"a": True}), same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    (False, True)
    """
    try:
        return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    except RecursionError:
        return False


def _arguments(value: Fields | None) -> Fields:
    arguments = (value or {}).get("arguments")
    return arguments if isinstance(arguments, dict) else {}
