"""Texts of scripts without blanks are cut too, and prompts are made of them; others are cut into words as ever."""

from __future__ import annotations

import pytest
from tiny_llm import tiny_llm

from polykv.evals.corpora import corpus
from polykv.evals.fit import samples
from polykv.evals.gate_prompts import needle_prompts
from polykv.evals.haystack import Essay
from polykv.evals.needles import niah
from polykv.evals.pieces import LONGEST, PART, pieces
from polykv.evals.sample import plain

JAPANESE = "光は波であるか、それとも小さな粒の流れであるか、誰にも分からなかった。" * 40
THAI = "แสงเป็นคลื่นหรือเป็นกระแสของอนุภาคเล็กๆไม่มีใครรู้" * 40


@pytest.mark.parametrize("text", [JAPANESE, THAI, "x" * 5000, "e\u0301" * 500, "\u0301" * 500, "a b  c\nd"])
def test_nothing_is_lost(text: str) -> None:
    found = pieces(text)
    assert "".join(found) == " ".join(text.split())
    assert all(p.strip() for p in found)
    if not text.startswith("\u0301"):
        assert max(map(len, found)) <= max(2 * PART, 1)


def test_marks_stay_with_what_they_follow() -> None:
    assert all(p.count("e") == p.count("\u0301") for p in pieces("e\u0301" * 500))


def test_words_are_pieces() -> None:
    text = corpus("opticks")
    assert [p.rstrip() for p in pieces(text)] == text.split()
    assert pieces("a" * LONGEST) == ["a" * LONGEST] and pieces("") == [] == pieces(" \n")
    # Punctuation of all scripts is no sign of one without blanks.
    assert pieces("so\u2014called\u2014stuff\u2014wares, \u201cthat\u201d") == [
        "so\u2014called\u2014stuff\u2014wares, ",
        "\u201cthat\u201d",
    ]


@pytest.mark.parametrize("text", [JAPANESE, THAI])
def test_prompts_of_the_gate(text: str) -> None:
    llm = tiny_llm()
    found = needle_prompts(llm.prompts, text, 3, 500, 0)
    assert len({p.ids for p in found}) == 3
    for p in found:
        said = llm.detokenize(list(p.ids))
        assert 400 <= len(p.ids) <= 500 and f" is {p.answer}. " in said


@pytest.mark.parametrize("text", [JAPANESE, THAI, "x" * 900])
def test_needles(text: str) -> None:
    task = niah(["niah_single_2"], Essay.of(text))[0]
    for sample in samples(task, length=2000, n=3, seed=0, count=plain(len)):
        assert f"is: {sample.expected[0]}." in sample.prompt and 1700 < sample.tokens + sample.budget <= 2000
    if text is JAPANESE:
        assert len(set(Essay.of(text).sentences(30))) < 12  # cut where sentences end
