"""Copying and structure: verbatim ids and hexadecimal strings, JSON by a schema, arguments of a tool call.

A record stands at a given depth of a running text, among others of its kind; the answer must repeat its fields without
one wrong character. Models find needles long after they have begun to fail here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from polykv.errors import ConfigError
from polykv.evals.draws import Draws
from polykv.evals.haystack import DEPTHS, Essay, Placed, merge, nearest
from polykv.evals.sample import Draft
from polykv.evals.words import Distinct

# Records of the same kind beside the one that is asked for.
OTHERS = 3
LADDER = (0.0, 0.25, 0.5, 0.75, 1.0)
HEX_DIGITS = 40
# What the worked examples of the structured tasks are about; no key has a name of this form.
EXAMPLE = "the example"

Fields = dict[str, Any]
# Types that a field may have, in the words of JSON Schema.
TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool}

RECORD: dict[str, str] = {"serial": "string", "owner": "string", "units": "integer", "active": "boolean"}
# Tools that are offered -> their parameters; the first is the right one.
TOOLS: dict[str, dict[str, str]] = {
    "transfer_units": {"serial": "string", "to_account": "string", "units": "integer", "notify": "boolean"},
    "cancel_transfer": {"transfer_id": "string", "notify": "boolean"},
    "list_accounts": {"owner": "string", "limit": "integer"},
}


@dataclass(frozen=True)
class Ask:
    """A record, and how it is asked for. statement: its sentence in the text. before: what is said before the text,
    with an example of the form wanted: small models repeat an example that they have read last."""

    statement: str
    question: str
    prefix: str
    expected: str
    meta: dict[str, Any]
    before: str = ""


def _id(draws: Draws) -> str:
    """Letters of both cases and digits, in groups."""
    return f"{draws.letters(3)}-{draws.digits(5)}-{draws.letters(6, 'abcdefghjkmnpqrstuvwxyz23456789')}"


def _fields(draws: Draws) -> Fields:
    return {
        "serial": draws.hex(16),
        "owner": _id(draws),
        "units": 100 + draws.below(9900),
        "active": draws.below(2) == 1,
    }


def ask_id(key: str, draws: Draws) -> Ask:
    value, what = _id(draws), f"The order id of {key}"
    return Ask(f"{what} is {value}.", f"What is the order id of {key}?", f"{what} is", value, {"kind": "id"})


def ask_hex(key: str, draws: Draws) -> Ask:
    value, what = draws.hex(HEX_DIGITS), f"The checksum of {key}"
    return Ask(f"{what} is {value}.", f"What is the checksum of {key}?", f"{what} is", value, {"kind": "hex"})


def ask_json(key: str, draws: Draws) -> Ask:
    shown, shown_statement = _record(EXAMPLE, draws)
    fields, statement = _record(key, draws)
    before = (
        f"Records are written as JSON objects with exactly these fields: {_signature(RECORD)}. For example, "
        f'"{shown_statement}" is written {json.dumps(shown)}'
    )
    question = f"Write the record of {key} in the text above as such a JSON object, and nothing else."
    return Ask(statement, question, '{"', json.dumps(fields), {"kind": "json", "schema": RECORD}, before)


def ask_tool(key: str, draws: Draws) -> Ask:
    shown, shown_statement = _order(EXAMPLE, draws)
    call, statement = _order(key, draws)
    tools = "; ".join(f"{name}({_signature(parameters)})" for name, parameters in TOOLS.items())
    before = (
        f"You have these tools: {tools}. Orders are carried out by one call, a JSON object. For example, "
        f'"{shown_statement}" is carried out by {json.dumps(shown)}'
    )
    question = f"Write the call for the order of {key} in the text above as such a JSON object, and nothing else."
    return Ask(statement, question, '{"', json.dumps(call), {"kind": "tool", "tools": TOOLS}, before)


def _record(key: str, draws: Draws) -> tuple[Fields, str]:
    """A record of RECORD, and its sentence."""
    f = _fields(draws)
    active = "active" if f["active"] else "not active"
    return f, (
        f"Record of {key}: its serial is {f['serial']}, its owner is {f['owner']}, it has {f['units']} units and is "
        f"{active}."
    )


def _order(key: str, draws: Draws) -> tuple[Fields, str]:
    """A call of the first tool, and the sentence that asks for it."""
    f = _fields(draws)
    arguments = {"serial": f["serial"], "to_account": f["owner"], "units": f["units"], "notify": f["active"]}
    notify = "notify" if f["active"] else "do not notify"
    return {"name": next(iter(TOOLS)), "arguments": arguments}, (
        f"Order of {key}: transfer {f['units']} units of serial {f['serial']} to account {f['owner']} and {notify} the "
        "owner."
    )


def _signature(parameters: dict[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in parameters.items())


# task -> (what makes a record, metric, tokens that its answer may take: one for each character, and room to spare)
TASKS: dict[str, tuple[Callable[[str, Draws], Ask], str, int]] = {
    "copy_id": (ask_id, "exact_copy", 64),
    "copy_hex": (ask_hex, "exact_copy", 96),
    "copy_json": (ask_json, "exact_object", 192),
    "copy_tool": (ask_tool, "exact_object", 256),
}


@dataclass(frozen=True)
class Copying:
    """One such task. depths: sample i has its record at depths[i % len(depths)], 0 (beginning) to 1 (end)."""

    name: str
    make: Callable[[str, Draws], Ask]
    metric: str
    budget: int
    essay: Essay
    depths: tuple[float, ...] = LADDER
    least: int = 1
    unit: str = "words"

    def step(self, length: int) -> int:
        return 100

    def draft(self, seed: int, index: int, size: int) -> Draft:
        keys = Distinct(Draws(seed, self.name, index, "keys"), "words")
        asks = [self.make(keys.next(), Draws(seed, self.name, index, "record", i)) for i in range(1 + OTHERS)]
        placed = self._hide([a.statement for a in asks], seed, index, size)
        head = f"{asks[0].before}\n\nRead the following text.\n".lstrip()
        return Draft(
            prompt=f"{head}{placed.text}\n{asks[0].question}",
            prefix=asks[0].prefix,
            expected=(asks[0].expected,),
            at=(len(head) + placed.at[0],),
            span=(len(head), len(head) + len(placed.text)),
            meta=asks[0].meta,
        )

    def _hide(self, records: Seq[str], seed: int, index: int, size: int) -> Placed:
        """The text with all records in it; at the very end the first one, which is asked for, is the outermost."""
        sentences = self.essay.sentences(size)
        others = Draws(seed, self.name, index, "places").sample(DEPTHS, OTHERS)
        depths = [self.depths[index % len(self.depths)], *(p / 100 for p in others)]
        places = [nearest(sentences, depth) for depth in depths]
        needles = list(zip(places, records, strict=True))
        if places[0] < len(sentences):
            return merge(sentences, needles, " ")
        placed = merge(sentences, [*needles[1:], needles[0]], " ")
        return Placed(placed.text, (placed.at[-1], *placed.at[:-1]))


def copying(names: Iterable[str], essay: Essay, depths: tuple[float, ...] = LADDER) -> list[Copying]:
    """Tasks by name. Raises ConfigError for a name that is not in TASKS."""
    tasks = []
    for name in names:
        if name not in TASKS:
            raise ConfigError(f"unknown task {name!r:.60}; known: {', '.join(TASKS)}")
        tasks.append(Copying(name, *TASKS[name], essay=essay, depths=depths or LADDER))
    return tasks
