"""The shipped texts: long enough, clean, and with nothing in common."""

from __future__ import annotations

import pytest

from polykv.evals.corpora import CORPORA, corpus


@pytest.mark.parametrize("name", CORPORA)
def test_text_is_long_and_clean(name: str) -> None:
    text = corpus(name)
    assert len(text.encode()) >= 300_000
    assert "\ufffd" not in text and "\r" not in text and "\0" not in text and "Project Gutenberg License" not in text


def test_selection_and_held_out_share_nothing() -> None:
    """No run of twelve words stands in both English texts."""
    runs = []
    for name in ("opticks", "news"):
        words = corpus(name).split()
        runs.append({tuple(words[i : i + 12]) for i in range(len(words) - 11)})
    assert not runs[0] & runs[1]


def test_many_scripts() -> None:
    text = corpus("languages")
    for letter in "жαअあ한世กאعđ":
        assert letter in text.lower(), letter
