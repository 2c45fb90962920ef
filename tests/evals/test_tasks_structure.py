"""What the tasks put into a prompt: how much, where, in which words, and that the answer is there."""

from __future__ import annotations

import hashlib
import itertools
import json
import re

import pytest

from polykv.errors import ConfigError
from polykv.evals.copying import OTHERS, RECORD, TOOLS, copying
from polykv.evals.copying import TASKS as COPIES
from polykv.evals.counting import GIVEN, Counting
from polykv.evals.draws import Draws
from polykv.evals.haystack import DEPTHS, NOISE, Essay, in_lines, in_order, in_text
from polykv.evals.needles import TASKS, Niah, niah
from polykv.evals.rewrites import MARK, Rewrites
from polykv.evals.sample import Draft, Task
from polykv.evals.scoring import SHAPES, fits, is_call
from polykv.evals.tracking import Tracking
from polykv.evals.words import ADJECTIVES, NOUNS, Distinct
from polykv.evals.writings import LONGEST

ESSAY = Essay.of("The rain fell on the old mill. Nobody came, e.g. by the road! Was it late? " * 30)


def one(name: str, **more: object) -> Niah:
    return niah([name], ESSAY, **more)[0]


def every_task() -> list[Task]:
    return [*niah(TASKS, ESSAY), Tracking(), Rewrites(2), Counting(), *copying(COPIES, ESSAY)]


def lines(draft: Draft) -> list[str]:
    """The filling between instruction and question."""
    assert draft.span is not None
    return draft.prompt[draft.span[0] : draft.span[1]].split("\n")


# -- random choices ------------------------------------------------------------------------------------------------
def test_draws_depend_on_their_names_only() -> None:
    assert Draws(1, "a").digits(9) == Draws(1, "a").digits(9) != Draws(1, "b").digits(9)
    assert sorted(Draws(3).shuffled(range(50))) == list(range(50)) != Draws(3).shuffled(range(50))
    with pytest.raises(ValueError, match="3 of 2"):
        Draws(0).sample("ab", 3)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", Draws(5).uuid())
    assert {Draws(i).below(3) for i in range(40)} == {0, 1, 2}


def test_words_do_not_run_out() -> None:
    assert len(set(ADJECTIVES)) == len(ADJECTIVES) and len(set(NOUNS)) == len(NOUNS)
    n = len(ADJECTIVES) * len(NOUNS) + 100
    words = Distinct(Draws(0), "words")
    found = [words.next() for _ in range(n)]
    assert len(set(found)) == n
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+){1,2}", w) for w in found)


# -- haystacks -----------------------------------------------------------------------------------------------------
def test_sentences() -> None:
    found = ESSAY.sentences(12)
    assert found == ["The rain fell on the old mill.", "Nobody came, e.g. by the"]
    # Longer than the text: from the start again.
    short = Essay.of("One two. Three")
    assert short.sentences(7) == ["One two.", "Three One two.", "Three One"]
    with pytest.raises(ConfigError, match="nothing can be hidden"):
        Essay.of(" \n ")


@pytest.mark.parametrize("place", [in_lines, in_order, in_text])
def test_every_needle_is_where_it_is_said_to_be(place) -> None:
    pieces, needles = [f"line {i}." for i in range(40)], ["<a>", "<bb>", "<ccc>"]
    for seed in range(20):
        placed = place(pieces, needles, Draws(seed))
        for needle, at in zip(needles, placed.at, strict=True):
            assert placed.text.startswith(needle, at) and placed.text.count(needle) == 1
        left = placed.text
        for needle in needles:
            left = left.replace(needle, "")
        assert re.findall(r"line \d+\.", left) == pieces
        order = sorted(placed.at, reverse=place is in_lines)
        assert list(placed.at) == order


def test_needles_stand_before_different_lines() -> None:
    for seed in range(20):
        placed = in_lines(["x"] * 5, ["n"] * 5, Draws(seed))
        assert placed.text.split("\n") == ["n", "x"] * 5
    with pytest.raises(ValueError, match="of 2 items"):
        in_lines(["x"] * 2, ["n"] * 3, Draws(0))
    assert len(DEPTHS) == len(set(DEPTHS)) == 40 and DEPTHS[0] == 0 and DEPTHS[-1] == 100


# -- niah ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", TASKS)
def test_niah(name: str) -> None:
    haystack, key_kind, value_kind, k, v, q = TASKS[name]
    task = one(name)
    n = max(k, q) * v
    for index in range(6):
        size = 60 if haystack == "essay" else 9
        draft = task.draft(42, index, size)
        text = draft.prompt
        assert len(draft.expected) == q * v == len(set(draft.expected)) == len(draft.at)
        assert all(SHAPES[value_kind].fullmatch(e) and text.count(e) == 1 for e in draft.expected)
        assert [text[at:].startswith(e) for at, e in zip(draft.at, draft.expected, strict=True)] == [True] * q * v
        stated = re.findall(rf"One of the special magic {value_kind} for (\S+) is: (\S+)\.", text)
        others = size if haystack == "needle" else 0
        assert len(stated) == n + others
        assert len({key for key, _ in stated}) == n // v + others
        assert len({value for _, value in stated}) == n + others
        keys = draft.meta["keys"]
        assert [value for key in keys for k2, value in stated if k2 == key] == sorted(
            draft.expected, key=lambda e: (keys.index(next(a for a, b in stated if b == e)), text.index(e))
        )
        assert all(SHAPES[key_kind].fullmatch(key) for key in keys)
        if haystack == "noise":
            assert lines(draft).count(NOISE) == size and len(lines(draft)) == size + n
        if haystack == "needle":
            assert len(lines(draft)) == size + n
        if haystack == "essay":
            words = text[slice(*draft.span)]
            for key, value in stated:
                words = words.replace(f"One of the special magic {value_kind} for {key} is: {value}.", "")
            assert words.split() == [w.rstrip() for w in ESSAY.words[:size]]
        single = q * v == 1
        assert ("A special magic" in text) == single and ("Some special magic" in text) != single
        assert draft.prefix.endswith(" is" if single else " are") and "  " not in text
        asked = keys[0] if q == 1 else ", ".join(keys[:-1]) + ", and " + keys[-1]
        assert asked in text.split("\n")[-1] and asked in draft.prefix
        assert not any(e in draft.prefix for e in draft.expected)


def test_needles_keep_their_values_when_the_haystack_grows() -> None:
    for task in every_task()[:-4]:
        small, large = (task.draft(7, 3, task.least + extra) for extra in (0, 11))
        assert small.expected == large.expected and small.prefix == large.prefix


def test_depths() -> None:
    for name in ("niah_single_1", "niah_single_2", "niah_multikey_2"):
        task = one(name, depths=(0.0, 0.5, 1.0))
        found = []
        for index in range(3):
            draft = task.draft(1, index, 200 if name == "niah_single_2" else 20)
            start, end = draft.span
            found.append((draft.at[0] - start) / (end - start))
        assert found[0] < 0.1 and 0.4 < found[1] < 0.6 and found[2] > 0.9
    with pytest.raises(ConfigError, match="hides 4 needles"):
        niah(["niah_multivalue"], ESSAY, (0.5,))
    with pytest.raises(ConfigError, match="unknown task 'niah_9'; known: niah_single_1"):
        niah(["niah_9"], ESSAY)


# -- vt ------------------------------------------------------------------------------------------------------------
def test_tracking() -> None:
    for index in range(5):
        draft = Tracking().draft(42, index, 12)
        example, _, question = draft.prompt.partition("\n\nKeep track")
        statements = re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", question)
        names = [name for name, _ in statements]
        assert tuple(names) == draft.expected and len(set(names)) == 5
        assert [value for _, value in statements] == [draft.meta["value"], *names[:-1]]
        assert question.count(NOISE) == 12
        assert question.endswith(f"assigned the value {draft.meta['value']} in the text above.")
        assert f"5 variables are assigned the value {draft.meta['value']}, they are:" in draft.prefix
        assert [draft.prompt[at : at + 5] for at in draft.at] == names
        shown = re.findall(r"VAR ([A-Z]{3}) =", example)
        assert len(set(shown)) == 5 and example.endswith(" ".join(shown))
        assert not set(re.findall(r"\b[A-Z]{5}\b", example))
    first, second = (Tracking().draft(42, i, 12).prompt for i in (0, 1))
    assert first.partition("\n\nKeep")[0] != second.partition("\n\nKeep")[0]
    assert "\n\nKeep" not in Tracking(example=False).draft(42, 0, 12).prompt
    assert len(Tracking(hops=2).draft(0, 0, 5).expected) == 3
    # A chain that is longer than the filling of the worked example.
    for hops in (1, 9, 10, 20):
        task = Tracking(hops=hops)
        assert len(task.draft(0, 0, task.least).expected) == hops + 1
    # Hops end with a blank, the first statement does not.
    ends = [line.endswith(" ") for line in lines(Tracking().draft(42, 0, 12)) if line.startswith("VAR")]
    assert ends == [False, True, True, True, True]


# -- mrcr ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("needles", [2, 4, 8])
def test_rewrites(needles: int) -> None:
    order = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    chosen = set()
    for index in range(12):
        draft = Rewrites(needles).draft(42, index, needles + 9)
        asked, said = draft.history[::2], draft.history[1::2]
        assert {role for role, _ in asked} == {"user"} and {role for role, _ in said} == {"assistant"}
        wanted = draft.history[draft.at[0] - 1][1]
        same = [answer for (_, ask), (_, answer) in zip(asked, said, strict=True) if ask == wanted]
        assert len(asked) == needles + 9 and len(same) == needles == len(set(same))
        mark, number = draft.meta["mark"], draft.meta["wanted"]
        assert draft.expected == (mark + same[number - 1],) and len(mark) == MARK
        assert mark in draft.prompt and f"the {order[number - 1]} " in draft.prompt
        assert max(len(text) for _, text in said) <= LONGEST
        chosen.add(number)
    assert len(chosen) > 1
    with pytest.raises(ConfigError, match="defined for 2, 4, 8"):
        Rewrites(3)
    # More requests than there are kinds of them: they come again, their pieces do not.
    many = Rewrites(2).draft(0, 0, 700)
    assert len({text for role, text in many.history if role == "assistant"}) == 700


# -- count-up ------------------------------------------------------------------------------------------------------
def test_counting() -> None:
    assert Counting().draft(0, 0, 1).prompt == "1, 2, 3, 4, 5, 6, 7, 8,"
    draft = Counting().draft(0, 1, 1)
    given = [int(x) for x in draft.prompt.rstrip(",").split(", ")]
    assert given == list(range(given[0], given[0] + GIVEN)) and draft.expected == (str(given[-1] + 1),)
    assert draft.raw and not draft.prefix


# -- copies --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", COPIES)
def test_copying(name: str) -> None:
    task = copying([name], ESSAY)[0]
    for index in range(10):
        draft = task.draft(42, index, 300)
        start, end = draft.span
        text = draft.prompt[start:end]
        depth = (draft.at[0] - start) / (end - start)
        assert abs(depth - task.depths[index % 5]) < 0.16
        wanted = re.search(r" of ([a-z]+-[a-z]+)", draft.prompt[draft.at[0] :])
        assert wanted and wanted[1] in draft.prompt[end:]
        assert len(re.findall(rf"{draft.prompt[draft.at[0] : draft.at[0] + 8]}\S* ", text)) >= 1 + OTHERS - 1
        if name in ("copy_id", "copy_hex"):
            assert text.count(draft.expected[0]) == 1
            assert re.match(r"\W*\w", draft.prefix)
        else:
            value = json.loads(draft.expected[0])
            fields = value if name == "copy_json" else value["arguments"]
            assert fits(value, RECORD) if name == "copy_json" else is_call(value, TOOLS)
            assert all(str(f) in text for f in fields.values() if not isinstance(f, bool))
            assert draft.prefix == '{"'
            # The worked example stands before the text and is about nothing that is asked for.
            shown = json.loads(re.search(r"(?:written|carried out by) ({.*})", draft.prompt[:start])[1])
            assert set(shown) == set(value) and shown != value
        if index % 5 == 4:
            assert text.rstrip().endswith(draft.prompt[draft.at[0] : end])
    with pytest.raises(ConfigError, match="unknown task 'copy_x'"):
        copying(["copy_x"], ESSAY)


# -- the same everywhere -------------------------------------------------------------------------------------------
def test_samples_are_what_they_always_were() -> None:
    """Another hash is another benchmark: figures of before cannot be compared any more."""
    digest = hashlib.sha256()
    for task, index in itertools.product(every_task(), (0, 1)):
        d = task.draft(42, index, 40)
        digest.update(json.dumps([d.prompt, d.prefix, d.expected, d.at, d.history]).encode())
    assert digest.hexdigest() == "0cda2a1a076e0f6b16c2c885fcb0d64926c7d1c581756112bf066f864c32381e"
