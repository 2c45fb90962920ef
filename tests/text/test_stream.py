"""Streaming shows what one-shot decoding shows, in whole characters, and nothing of a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import byte_level, sentencepiece

from polykv.errors import ConfigError
from polykv.text.stream import TextStream
from polykv.text.tokenizer import Tokenizer

TOKENIZERS = [Tokenizer.from_gguf(m) for m in (byte_level(), sentencepiece(add_space_prefix=False), sentencepiece())]
IDS = ["bytes", "pieces", "prefixed"]


def _cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """`text` before the stop string that is complete first, by trying all ends."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@pytest.mark.parametrize("index", range(3), ids=IDS)
@settings(deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids(index: int, data: st.DataObject, skip: bool) -> None:
    tok = TOKENIZERS[index]
    ids = data.draw(st.lists(st.integers(0, tok.vocab_size - 1), max_size=40))
    stream = TextStream(tok, skip_special=skip)
    chunks = [stream.push(i) for i in ids] + [stream.finish()]
    assert "".join(chunks) == tok.decode(ids, skip_special=skip) == stream.text
    assert not stream.stopped


@pytest.mark.parametrize("index", range(3), ids=IDS)
@settings(deadline=None, max_examples=200)
@given(
    text=st.text("ab c\n😀é", max_size=30),
    stops=st.lists(st.text("ab c\n😀é", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_stop_strings(index: int, text: str, stops: list[str]) -> None:
    tok = TOKENIZERS[index]
    ids = tok.encode(text, add_bos=False)
    want, stopped = _cut(text, stops)
    stream = TextStream(tok, stops)
    shown = ""
    for i in ids:
        shown += stream.push(i)
        # What is shown is never taken back, so no part of a stop string may be in it at any time.
        assert want.startswith(shown)
    shown += stream.finish()
    assert (shown, stream.stopped, stream.text) == (want, stopped, want)


def test_utf8_is_never_split() -> None:
    tok = TOKENIZERS[0]
    stream = TextStream(tok)
    chunks = [stream.push(i) for i in tok.encode("a👨‍👩‍👧é中")]
    assert "�" not in "".join(chunks)
    assert "".join(chunks) == "a👨‍👩‍👧é中"
    assert "" in chunks


def test_unfinished_sequence_is_shown_at_the_end() -> None:
    tok = TOKENIZERS[0]
    stream = TextStream(tok)
    ids = tok.encode("x😀")[:-1]
    assert "".join(map(stream.push, ids)) == "x"
    assert stream.finish() == "�"


def test_stop_string_over_three_tokens_never_leaks() -> None:
    tok = TOKENIZERS[0]
    stream = TextStream(tok, ["abc"])
    chunks = [stream.push(tok.encode(c)[0]) for c in "xabcx"]
    assert chunks == ["x", "", "", "", ""]
    assert stream.stopped and stream.text == "x" and stream.finish() == ""


def test_held_back_text_is_shown_when_it_was_no_stop_string() -> None:
    tok = TOKENIZERS[0]
    stream = TextStream(tok, ["abc"])
    assert [stream.push(tok.encode(c)[0]) for c in "ababd"] == ["", "", "ab", "", "abd"]


@pytest.mark.parametrize("stop", ["abc", [""], [1]])
def test_bad_stop_strings(stop: object) -> None:
    with pytest.raises(ConfigError):
        TextStream(TOKENIZERS[0], stop)  # type: ignore[arg-type]
