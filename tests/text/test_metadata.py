"""Tokenizer metadata that lies: one typed error each, at construction."""

from __future__ import annotations

import numpy as np
import pytest
from vocabularies import byte_level, sentencepiece

from polykv.errors import FormatError, UnsupportedError
from polykv.text.pretokenizers import PRE_TOKENIZERS
from polykv.text.tokenizer import Tokenizer

_TOKENS = list(byte_level()["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
_SCORES = list(sentencepiece()["tokenizer.ggml.scores"])  # type: ignore[call-overload]

_BAD: list[tuple[str, dict[str, object], str]] = [
    ("no model", byte_level(model=None), "model"),
    ("empty vocabulary", byte_level(tokens=[]), "empty"),
    ("no vocabulary", byte_level(tokens=None), "empty"),
    ("tokens no strings", byte_level(tokens=[1, 2]), "another type"),
    ("tokens one string", byte_level(tokens="abc"), "array of strings"),
    ("token twice", byte_level(tokens=[*_TOKENS[:-1], "a"]), "twice"),
    ("bos outside", byte_level(bos_token_id=2**32 - 1), "bos_token_id"),
    ("eos is size", byte_level(eos_token_id=len(_TOKENS)), "eos_token_id"),
    ("unk negative", byte_level(unknown_token_id=-1), "unknown_token_id"),
    ("padding outside", byte_level(padding_token_id=len(_TOKENS)), "padding_token_id"),
    ("mask is bool", byte_level(mask_token_id=True), "mask_token_id"),
    ("add_eos no bool", byte_level(add_eos_token=1), "true or false"),
    ("bos no int", byte_level(bos_token_id="0"), "bos_token_id"),
    ("bos is bool", byte_level(bos_token_id=True), "bos_token_id"),
    ("short types", byte_level(token_type=[1, 2]), "2 entries"),
    ("float types", byte_level(token_type=np.ones(len(_TOKENS))), "array of numbers"),
    ("unknown type", byte_level(token_type=[9] * len(_TOKENS)), "0..6"),
    ("ragged types", byte_level(token_type=[[1], [1, 2]]), "array of numbers"),
    ("add_bos without bos", byte_level(add_bos_token=True, bos_token_id=None, eos_token_id=1), "no bos_token_id"),
    ("add_bos no bool", byte_level(add_bos_token=1), "true or false"),
    ("merge without separator", byte_level(merges=["th"]), "merges"),
    ("merge of unknown", byte_level(merges=["t zz"]), "merges"),
    ("merge to unknown", byte_level(merges=["q q"]), "merges"),
    ("merges no strings", byte_level(merges=[1]), "merges"),
    ("no scores", sentencepiece(scores=None), "scores"),
    ("short scores", sentencepiece(scores=_SCORES[:-1]), "scores"),
    ("nan score", sentencepiece(scores=[float("nan")] * len(_SCORES)), "finite"),
    ("byte token", sentencepiece(token_type=[6] * len(_SCORES)), "<0xNN>"),
    ("pre of another kind", sentencepiece(pre="qwen2"), "pre"),
]


@pytest.mark.parametrize(("metadata", "says"), [b[1:] for b in _BAD], ids=[b[0] for b in _BAD])
def test_malformed(metadata: dict[str, object], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        Tokenizer.from_gguf(metadata)


def test_unknown_pre_tokenizer_lists_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"not-a-rule.*smollm"):
        Tokenizer.from_gguf(byte_level(pre="not-a-rule"))


def test_unknown_model_kind() -> None:
    with pytest.raises(UnsupportedError, match="rwkv"):
        Tokenizer.from_gguf(byte_level(model="rwkv"))


def test_missing_pre_tokenizer_is_reported() -> None:
    assert Tokenizer.from_gguf(byte_level(pre=None)).notes
    assert not Tokenizer.from_gguf(byte_level()).notes


def test_an_unused_setting_is_reported() -> None:
    (note,) = Tokenizer.from_gguf(byte_level(add_eos_token=True)).notes
    assert "add_eos_token" in note


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_rule_compiles_and_keeps_the_text(name: str) -> None:
    tok = Tokenizer.from_gguf(byte_level(pre=name))
    text = "It's 12345 o'clock, DON'T\n\n\t x=y;  naïve café 中文かな /home\r\n 99¾ ☃️"
    assert tok.decode(tok.encode(text, add_bos=False)) == text


def test_numpy_and_list_arrays_are_equal() -> None:
    metadata = sentencepiece()
    arrays = {k: np.array(v) if k.endswith(("scores", "token_type")) else v for k, v in metadata.items()}
    a, b = Tokenizer.from_gguf(metadata), Tokenizer.from_gguf(arrays)
    assert a.encode("the and\n\nx") == b.encode("the and\n\nx")
