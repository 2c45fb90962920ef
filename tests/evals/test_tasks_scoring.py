"""What answers are worth, and the figures of many of them."""

from __future__ import annotations

import difflib
import json

import pytest

from polykv.evals.answers import Answer, End
from polykv.evals.cells import BINS, by_depth, compared, whole
from polykv.evals.copying import RECORD, TOOLS
from polykv.evals.counting import longest_run
from polykv.evals.sample import Draft, Sample
from polykv.evals.scoring import (
    Mark,
    against,
    all_found,
    clean,
    copied,
    counted,
    first_object,
    rewritten,
    structured,
)
from polykv.evals.statistics import wilson


def sample(*expected: str, prefix: str = "", depths: tuple[float, ...] = (0.5,), index: int = 0, **meta) -> Sample:
    draft = Draft("prompt", prefix, expected, tuple(range(len(expected))), meta=meta)
    return Sample("task", 42, index, 1, 1024, 128, 100, depths, draft)


@pytest.mark.parametrize(
    ("text", "kind", "expected", "score", "precision"),
    [
        (" 1234567.", "numbers", ["1234567"], 1, 1),
        ("1234567, 7654321 and 1111111", "numbers", ["1234567", "7654321"], 1, 2 / 3),
        ("1234567", "numbers", ["1234567", "7654321"], 0.5, 1),
        ("7654321", "numbers", ["1234567"], 0, 0),
        # A substring counts, as upstream; the number around it is not one of seven digits.
        ("912345671", "numbers", ["1234567"], 1, None),
        ("no idea", "numbers", ["1234567"], 0, None),
        ("ABCDE FGHIJ klmno KLMNO", "names", ["ABCDE", "KLMNO", "PQRST", "VWXYZ"], 0.5, 2 / 3),
        # In any case, as upstream.
        ("abcde", "names", ["ABCDE"], 1, None),
        ("Is CALM-OTTER", "words", ["calm-otter"], 1, 1),
        ("0F8FAD5B-d9cb-469f-a165-70867728950e", "uuids", ["0f8fad5b-d9cb-469f-a165-70867728950e"], 1, 1),
    ],
)
def test_substrings(text: str, kind: str, expected: list[str], score: float, precision: float | None) -> None:
    mark = all_found(text, sample(*expected, kind=kind))
    assert mark.score == score and mark.precision == (None if precision is None else pytest.approx(precision))
    assert sum(mark.parts) / len(mark.parts) == score


def test_clean() -> None:
    assert clean("\x01 a\tb \x1f\n") == "a\nb"
    assert clean("\x00\x1f \n") == ""


def test_rewriting() -> None:
    right = "k3" + "The old mill stood by the river. " * 20
    s = sample(right, mark="k3", needles=2, wanted=1)
    assert rewritten(f"  {right}\n", s).score == pytest.approx(1, abs=0.01)
    assert rewritten(right[2:], s) == Mark(0.0, (0.0,), None, {"marked": 0.0, "reasoned": 0.0})
    other = "k3" + right[2:300] + "and then it was gone"
    want = difflib.SequenceMatcher(None, other[2:], right[2:]).ratio()
    assert rewritten(other, s).score == want
    assert rewritten(f"<think>which?</think>\n{other}", s).figures == {"marked": 1.0, "reasoned": 1.0}


def test_runs() -> None:
    assert longest_run("9 10 11 12", 9) == 4
    assert longest_run("9, 10, 12, 13, 14", 9) == 2
    assert longest_run("10, 11", 9) == 0
    assert longest_run("9, 9, 10, 11", 9) == 3
    assert longest_run("9, 10, " + "1" * 5000, 9) == 2
    mark = counted("9, 10, 11", sample("9"))
    assert mark.figures == {"run": 3.0} and mark.score == 1
    assert against(mark, counted("9, 10, 11, 12, 13, 14", sample("9"))).score == 0.5
    assert against(mark, counted("9", sample("9"))).score == 1
    assert against(mark, counted("8", sample("9"))) == mark


@pytest.mark.parametrize(
    ("text", "kind", "expected", "score", "anywhere"),
    [
        (" ABC-12345-x7.\nMore", "id", "ABC-12345-x7", 1, 1),
        (' "ABC-12345-x7"', "id", "ABC-12345-x7", 1, 1),
        ("ABC-12345-X7", "id", "ABC-12345-x7", 0, 0),
        ("ABC-12345-x78", "id", "ABC-12345-x7", 0, 1),
        ("the ABC-12345-x7", "id", "ABC-12345-x7", 0, 1),
        ("`00ff`", "hex", "00ff", 1, 1),
        ("00fe", "hex", "00ff", 0, 0),
        ("...", "hex", "00ff", 0, 0),
    ],
)
def test_copies(text: str, kind: str, expected: str, score: float, anywhere: float) -> None:
    mark = copied(text, sample(expected, kind=kind))
    assert (mark.score, mark.figures["anywhere"]) == (score, anywhere)


OBJECT = {"serial": "0f", "owner": "A-1", "units": 5, "active": True}
CALL = {"name": "transfer_units", "arguments": {"serial": "0f", "to_account": "A-1", "units": 5, "notify": True}}


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (json.dumps(OBJECT)[1:], (1, 1, 1, 1)),
        (json.dumps(OBJECT)[1:] + " and so on }", (1, 1, 1, 1)),
        (json.dumps(OBJECT | {"units": 6})[1:], (0, 1, 1, 0.75)),
        (json.dumps(OBJECT | {"units": "5"})[1:], (0, 1, 0, 0.75)),
        (json.dumps(OBJECT | {"active": 1})[1:], (0, 1, 0, 0.75)),
        (json.dumps(OBJECT | {"more": 1})[1:], (0, 1, 0, 1)),
        ('"serial": "0f"}', (0, 1, 0, 0.25)),
        ('"serial": "0f", "serial": "0f"}', (0, 0, 0, 0)),
        ("no", (0, 0, 0, 0)),
        ('"a":' + "[" * 100_000, (0, 0, 0, 0)),
        ('"serial": ' + "1" * 5000 + "}", (0, 0, 0, 0)),
    ],
)
def test_objects(text: str, figures: tuple[float, ...]) -> None:
    mark = structured(text, sample(json.dumps(OBJECT), prefix="{", kind="json", schema=RECORD))
    assert (mark.score, *(mark.figures[k] for k in ("parsed", "valid", "fields"))) == figures


def test_calls() -> None:
    s = sample(json.dumps(CALL), prefix="{", kind="tool", tools=TOOLS)
    assert structured(json.dumps(CALL)[1:], s).score == 1
    wrong = {"name": "cancel_transfer", "arguments": {"transfer_id": "0f", "notify": True}}
    assert structured(json.dumps(wrong)[1:], s).figures == {"parsed": 1, "valid": 1, "fields": 0.25}
    for bad in ({"name": "drop_table", "arguments": {}}, {"name": ["x"], "arguments": {}}, {"name": "list_accounts"}):
        assert structured(json.dumps(bad)[1:], s).figures["valid"] == 0
    assert structured('"arguments": [1]}', s).figures == {"parsed": 1, "valid": 0, "fields": 0}
    assert first_object("[1]") is None and first_object("") is None


# -- figures of many -----------------------------------------------------------------------------------------------
def answer(s: Sample, text: str = "x", end: End = End.STOP) -> Answer:
    return Answer(s, text, 3, end, 0.5, "raw")


def test_what_counts_as_data() -> None:
    s = sample("x")
    assert [answer(s, *a).data for a in (("x",), ("",), (" \x00",), ("x", End.TIMEOUT), ("x", End.LENGTH))] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert [answer(s, "x", end).capped for end in End] == [False, True, True, False]


def test_a_cell() -> None:
    answers = [answer(sample("x", index=i), end=End.LENGTH if i == 0 else End.STOP) for i in range(5)]
    marks = [Mark(1, (1,), 1.0, {"valid": 1.0}), Mark(0, (0,), None, {"valid": 0.0}), None, Mark(1, (1,), 0.5), None]
    cell = whole("f16", "rule", answers, marks)
    assert (cell["n"], cell["no_data"], cell["capped"]) == (3, 2, 1)
    # No data is not zero.
    assert cell["score"] == 66.67 and cell["precision"] == 75 and cell["figures"] == {"valid": 0.5}
    assert cell["interval"] == [round(100 * x, 2) for x in wilson(2, 3)]
    assert [a["score"] for a in cell["answers"]] == [1, 0, None, 1, None]
    empty = whole("f16", "rule", answers, [None] * 5)
    assert empty["score"] is None and empty["interval"] == [0, 100] and empty["n"] == 0
    json.dumps(cell)


def test_the_interval_of_shares_is_no_wider_than_that_of_hits() -> None:
    answers = [answer(sample("x", index=i)) for i in range(4)]
    halves = whole("f16", "rule", answers, [Mark(0.5, (0.5,))] * 4)
    hits = whole("f16", "rule", answers, [Mark(float(i % 2), (float(i % 2),)) for i in range(4)])
    assert halves["interval"] == hits["interval"]


def test_depth_bins() -> None:
    answers = [
        answer(sample("a", "b", depths=(0.0, 0.2))),
        answer(sample("a", "b", depths=(1.0, 0.2))),
        answer(sample("a", "b", depths=(0.5, 0.5))),
    ]
    found = by_depth(answers, [Mark(0.5, (1, 0)), Mark(1, (1, 1)), None])
    assert [b["n"] for b in found] == [1, 2, 0, 0, 1]
    assert [b["score"] for b in found] == [100, 50, None, None, 100]
    assert [(b["from"], b["to"]) for b in found] == list(BINS)
    assert by_depth([answer(sample("a", depths=()))], [Mark(1, (1,))]) == []


def test_comparing() -> None:
    one, zero = Mark(1, (1,)), Mark(0, (0,))
    same = compared([one, zero, None], [one, zero, one])
    assert same == {"n": 2, "difference": 0.0, "worse": 0, "better": 0, "p": 1.0}
    assert compared([one] * 10, [zero] * 10)["p"] == 0.002
    mixed = compared([one, zero], [zero, one])
    assert (mixed["worse"], mixed["better"], mixed["p"]) == (1, 1, 1.0)
    assert compared([None], [one])["difference"] is None
