"""TokenIndex against a dict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polykv.text.token_index import TokenIndex


class Clashing(str):
    """A text whose hash is that of its length: many are equal, as those of different texts could be."""

    __slots__ = ()

    def __hash__(self) -> int:
        return len(self)


@given(st.lists(st.text(max_size=4), unique=True), st.lists(st.text(max_size=4)))
def test_is_a_dict(tokens: list[str], others: list[str]) -> None:
    for kind in (str, Clashing):
        index = TokenIndex(list(map(kind, tokens)))
        want = dict(zip(tokens, range(len(tokens)), strict=True))
        for text in map(kind, tokens + others):
            assert index.get(text) == want.get(str(text), -1)
            assert (text in index) == (str(text) in want)
        assert index.repeated() is None


@given(st.lists(st.text(max_size=2), min_size=1), st.data())
def test_names_a_repeated_text(tokens: list[str], data: st.DataObject) -> None:
    tokens.insert(data.draw(st.integers(0, len(tokens))), data.draw(st.sampled_from(tokens)))
    for kind in (str, Clashing):
        twice = TokenIndex(list(map(kind, tokens))).repeated()
        assert twice is not None and tokens.count(str(twice)) > 1


def test_unknown_text() -> None:
    with pytest.raises(KeyError, match="missing"):
        TokenIndex(["a"])["missing"]
    assert TokenIndex([]).get("a") == -1
