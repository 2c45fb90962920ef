"""Fitting to a length: it ends whatever a tokenizer does, keeps what it promises, refuses what cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from polykv.errors import ConfigError
from polykv.evals.fit import check_fit, depths, largest, samples
from polykv.evals.haystack import Essay
from polykv.evals.needles import TASKS, niah
from polykv.evals.rewrites import Rewrites
from polykv.evals.sample import Count, Draft, plain, transcript
from polykv.evals.tracking import Tracking

ESSAY = Essay.of("The rain fell on the old mill. Nobody came by the road that day. " * 20)
BY_WORDS = plain(lambda text: len(text.split()))
ALL = [*niah(TASKS, ESSAY), Tracking(), Rewrites(2)]


@pytest.mark.parametrize("task", ALL, ids=lambda t: t.name)
def test_samples_fill_a_length_and_never_exceed_it(task) -> None:
    for length in (1500, 5000):
        found = samples(task, length=length, n=4, seed=42, count=BY_WORDS)
        assert [s.index for s in found] == [0, 1, 2, 3]
        for s in found:
            assert s.tokens == BY_WORDS(s.prompt, s.prefix, s.draft.history)
            assert s.tokens + s.budget <= length
            assert s.tokens + s.budget > 0.9 * length
            assert len(s.depths) == len(s.expected) and all(0 <= d <= 1 for d in s.depths)


@pytest.mark.parametrize("task", ALL, ids=lambda t: t.name)
def test_too_short(task) -> None:
    with pytest.raises(ConfigError, match=rf"{task.name} does not fit into 40 tokens: .* take a length of"):
        samples(task, length=40, n=1, seed=42, count=BY_WORDS)


def test_the_advice_is_right() -> None:
    task = Tracking()
    with pytest.raises(ConfigError) as caught:
        samples(task, length=40, n=1, seed=42, count=BY_WORDS)
    enough = int(str(caught.value).rsplit("of ", 1)[1].removesuffix(" or more").replace(",", ""))
    assert samples(task, length=enough, n=1, seed=42, count=BY_WORDS)[0].size == task.least
    with pytest.raises(ConfigError):
        samples(task, length=enough - 1, n=1, seed=42, count=BY_WORDS)


def test_the_advice_is_right_for_all_tasks() -> None:
    """Who follows it is not told of the next task, and the next."""
    with pytest.raises(ConfigError) as caught:
        check_fit([(task, 40) for task in ALL], n=2, seed=42, count=BY_WORDS)
    enough = int(str(caught.value).rsplit("of ", 1)[1].removesuffix(" or more").replace(",", ""))
    check_fit([(task, enough) for task in ALL], n=2, seed=42, count=BY_WORDS)
    with pytest.raises(ConfigError, match=f"take a length of {enough:,} or more"):
        check_fit([(task, enough - 1) for task in ALL], n=2, seed=42, count=BY_WORDS)


def test_the_advice_is_right_for_all_samples() -> None:
    """Smallest questions differ in length from sample to sample."""
    task = Rewrites(4)
    with pytest.raises(ConfigError) as caught:
        samples(task, length=40, n=12, seed=42, count=BY_WORDS)
    enough = int(str(caught.value).rsplit("of ", 1)[1].removesuffix(" or more").replace(",", ""))
    assert len(samples(task, length=enough, n=12, seed=42, count=BY_WORDS)) == 12
    for few in (1, enough - 1):
        with pytest.raises(ConfigError, match=f"take a length of {enough:,} or more"):
            samples(task, length=few, n=12, seed=42, count=BY_WORDS)


def noisy(text: str) -> int:
    """Another number for every text, whatever its length."""
    return random.Random(len(text)).randint(0, 4000)


HOSTILE: dict[str, Callable[[str], int]] = {
    "none": lambda text: 0,
    "negative": lambda text: -5,
    "constant": lambda text: 7,
    "huge": lambda text: 10**9,
    "noisy": noisy,
    "falling": lambda text: max(0, 5000 - len(text)),
    "stairs": lambda text: len(text) // 5000 * 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("task", [ALL[0], ALL[3], ALL[4], ALL[8]], ids=lambda t: t.name)
def test_fitting_ends_for_every_way_to_count(task, name: str) -> None:
    calls = 0

    def counted(text: str) -> int:
        nonlocal calls
        calls += 1
        return HOSTILE[name](text)

    try:
        found = samples(task, length=2000, n=3, seed=0, count=plain(counted))
    except ConfigError as e:
        assert "does not fit into 2,000 tokens" in str(e)
        assert name in ("huge", "noisy", "falling")
    else:
        assert all(s.tokens + s.budget <= 2000 and s.size >= task.least for s in found)
    # Bisection and halving: a few dozen, where one step at a time would take thousands.
    assert calls < 150


def test_size_is_the_largest() -> None:
    task = ALL[0]
    size = largest(task, 1000, 42, BY_WORDS)
    tokens = [BY_WORDS(d.prompt, d.prefix) for d in (task.draft(42, 0, size), task.draft(42, 0, size + 1))]
    assert tokens[0] + task.budget <= 1000 < tokens[1] + task.budget


def test_depths_are_shares_of_the_filling() -> None:
    count: Count = plain(len)
    draft = Draft("head " + "a" * 50 + "X" + "b" * 49 + " tail", "", ("X",), (55,), (5, 105))
    assert depths(draft, count) == (0.5,)
    chat = Draft(
        "last", "", ("y",), (3,), history=(("user", "aa"), ("assistant", "b" * 8), ("user", ""), ("x", "y" * 10))
    )
    assert depths(chat, count) == (0.5,)
    assert depths(Draft("1, 2,", "", ("3",), ()), count) == ()
    assert transcript(chat.history[:2], "Bye").endswith("User: Bye\n\nAssistant:")
