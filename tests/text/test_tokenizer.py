"""Ids, round trips, special tokens."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import CONTROL, USER_DEFINED, byte_level, sentencepiece

from polykv.errors import PromptError
from polykv.model.gguf import read_gguf
from polykv.text.tokenizer import Tokenizer

BYTES = Tokenizer.from_gguf(byte_level())
PIECES = Tokenizer.from_gguf(sentencepiece(add_space_prefix=False))
PREFIXED = Tokenizer.from_gguf(sentencepiece())
# Ordinary text mixed with what tokenizers stumble over.
NASTY = st.lists(
    st.sampled_from(
        [*CONTROL, *USER_DEFINED, "<unk>", "<0x41>", " ", "\n", "\t", "the ", " and", "aaa", "> <", "é", "😀", "\0"]
    )
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=6),
    max_size=12,
).map("".join)


def _golden(path: Path, golden: Path, name: str) -> Tokenizer:
    """The tokenizer of a real model, whose ids are those of llama.cpp."""
    tokenizer = Tokenizer.from_gguf(read_gguf(path).metadata)
    rows: list[dict[str, object]] = json.loads((golden / "tokenizers" / "llamacpp_ids.json").read_text())[name]
    assert len(rows) == 340
    for special, key in ((False, "ids"), (True, "ids_special")):
        wrong = [r["text"] for r in rows if tokenizer.encode(str(r["text"]), special=special, add_bos=False) != r[key]]
        assert not wrong
    assert all(tokenizer.decode(r["ids"]) == r["text"] for r in rows)  # type: ignore[arg-type]
    return tokenizer


@pytest.mark.model
def test_ids_equal_llama_cpp_smollm2(smollm2_path: Path, golden: Path) -> None:
    tokenizer = _golden(smollm2_path, golden, "smollm2")
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos, tokenizer.vocab_size) == (1, 2, False, 49152)
    assert tokenizer.eog == {0, 2}


@pytest.mark.model
def test_ids_equal_llama_cpp_gemma3(gemma3_path: Path, golden: Path) -> None:
    tokenizer = _golden(gemma3_path, golden, "gemma3")
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos, tokenizer.vocab_size) == (2, 1, True, 262144)
    assert {1, 106} <= tokenizer.eog
    assert tokenizer.encode("a") == [2, *tokenizer.encode("a", add_bos=False)]
    # llama.cpp takes this entry of the vocabulary for a control token; its ids for the text (checked there).
    assert tokenizer.encode("</s>", add_bos=False) == [954, 236751, 236813]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES, PREFIXED], ids=["bytes", "pieces", "prefixed"])
@settings(deadline=None)
@given(text=NASTY, special=st.booleans())
def test_decode_inverts_encode(tokenizer: Tokenizer, text: str, special: bool) -> None:
    ids = tokenizer.encode(text, special=special, add_bos=False)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES, PREFIXED], ids=["bytes", "pieces", "prefixed"])
@settings(deadline=None)
@given(text=NASTY)
def test_user_text_never_gives_control_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert not any(map(tokenizer.is_special, tokenizer.encode(text, add_bos=False)))


@settings(deadline=None)
@given(
    words=st.lists(st.sampled_from(["a", "aa", "▁", "▁the", "the", ">", "<", "and", "ing", "é", "x", "."]), max_size=14)
)
def test_cutting_and_heap_equal_the_definition(words: list[str]) -> None:
    """Against the definition itself: merge the best-scored neighbours, leftmost first, until nothing joins."""
    text = "".join(words)
    vocab = sentencepiece()
    scores = dict(zip(vocab["tokenizer.ggml.tokens"], vocab["tokenizer.ggml.scores"], strict=True))  # type: ignore[call-overload]
    kinds = dict(zip(vocab["tokenizer.ggml.tokens"], vocab["tokenizer.ggml.token_type"], strict=True))  # type: ignore[call-overload]
    symbols = list(text)
    while True:
        joins = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if kinds.get(a + b, 0) in (1, 4)]
        if not joins:
            break
        i = min(joins)[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    got = PIECES._model.encode(text)
    assert [PIECES.token_text(i) for i in got] == symbols


def test_longest_special_token_wins_wherever_it_stands() -> None:
    ids = BYTES.encode("x<|turn|><s><s></s>", special=True)
    assert [BYTES.token_text(i) for i in ids] == ["x", "<|turn|><s>", "<s>", "</s>"]


def test_user_defined_tokens_are_always_parsed() -> None:
    assert [BYTES.token_text(i) for i in BYTES.encode("a   b\n\n<b>")] == ["a", "   ", "b", "\n\n", "<b>"]


def test_bos_and_prefix() -> None:
    assert PREFIXED.add_bos and not BYTES.add_bos
    assert PREFIXED.encode("the") == [1, *PREFIXED.encode("the", add_bos=False)]
    assert [PREFIXED.token_text(i) for i in PREFIXED.encode("the<s>the", special=True, add_bos=False)] == [
        "▁the",
        "<s>",
        "▁the",
    ]
    assert [PIECES.token_text(i) for i in PIECES.encode("the", add_bos=False)] == ["the"]
    assert BYTES.encode("a", add_bos=True)[0] == 0
    assert PREFIXED.encode("", add_bos=False) == []


def test_skip_special_and_invalid_bytes() -> None:
    ids = BYTES.encode("<s>hi</s>", special=True)
    assert BYTES.decode(ids) == "<s>hi</s>"
    assert BYTES.decode(ids, skip_special=True) == "hi"
    half = BYTES.encode("😀")[:-1]
    assert BYTES.decode(half) == "�"
    assert BYTES.token_bytes(BYTES.encode("é")[0]) == "é".encode()


def test_end_of_generation() -> None:
    tokens = ["<|im_end|>", "<|endoftext|>", "a", "<end_of_turn>", "x"]
    tok = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.eot_token_id": 4,
        }
    )
    assert tok.eog == {0, 1, 3, 4}
    assert tok.is_special(0) and not tok.is_special(2)


def test_missing_bytes_are_left_out_and_keep_neighbours_apart() -> None:
    tokens = ["a", "b", "ab"]
    tok = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": ["a b"],
        }
    )
    assert tok.encode("ab") == [2]
    assert tok.encode("acb") == [0, 1]


@pytest.mark.parametrize("bad", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_refused(bad: str) -> None:
    for tokenizer in (BYTES, PIECES):
        with pytest.raises(PromptError, match="surrogate"):
            tokenizer.encode(bad)


def test_ids_outside_of_the_vocabulary_are_refused() -> None:
    for bad in (-1, BYTES.vocab_size):
        with pytest.raises(PromptError, match="outside"):
            BYTES.decode([bad])


def test_character_without_any_token() -> None:
    tok = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["a"],
            "tokenizer.ggml.scores": [0.0],
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    assert tok.encode("a") == [0]
    with pytest.raises(PromptError, match="no token for the character"):
        tok.encode("b")


@pytest.mark.parametrize("tokenizer", [BYTES, PREFIXED], ids=["bytes", "pieces"])
@pytest.mark.parametrize("unit", ["a", " ", "\n", "<s>", "the and ", "中", "<|turn|"])
def test_work_grows_linearly(tokenizer: Tokenizer, unit: str) -> None:
    """A quadratic encoder would need hours for this."""
    text = unit * (100_000 // len(unit))
    ids = tokenizer.encode(text, special=True)
    assert tokenizer.decode(ids, skip_special=False).endswith(text[-1000:])


def test_long_text_equals_its_parts() -> None:
    words = ["the", "and", "ing", "all", "low", "é", "😀", "a1", "22", "x\n"]
    text = " ".join(words[i * i % len(words)] for i in range(60_000))
    whole = BYTES._model._bpe.encode(text, add_special_tokens=False).ids  # type: ignore[attr-defined]
    assert BYTES._model.encode(text) == whole
