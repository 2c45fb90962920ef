"""Text to token ids and back, from the metadata of a GGUF file. The ids are those of llama.cpp.

Text that looks like a special token stays text unless `special=True` is given; tokens of the user-defined kind are
text by nature (runs of spaces, markup) and are always recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from polykv.errors import PromptError, UnsupportedError
from polykv.text.sentencepiece import SentencePieceBpe
from polykv.text.special import SpecialTokens
from polykv.text.vocab import PREFIX, Kind, Vocabulary, fail, flag

_SURROGATE = re.compile("[\ud800-\udfff]")


class TextModel(Protocol):
    """What encodes runs of plain text: `bytelevel.ByteLevelBpe` or `SentencePieceBpe`."""

    add_bos_default: bool
    add_space_prefix_default: bool
    notes: tuple[str, ...]

    def encode(self, text: str) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


def _byte_level(metadata: Mapping[str, object], vocab: Vocabulary) -> TextModel:
    # Imported when it is needed: it brings a library that the other kind does without (4 MB, a tenth of a second).
    from polykv.text.bytelevel import ByteLevelBpe

    return ByteLevelBpe(metadata, vocab)


_MODELS: dict[str, Callable[[Mapping[str, object], Vocabulary], TextModel]] = {
    "gpt2": _byte_level,
    "llama": SentencePieceBpe,
}


class Tokenizer:
    """Tokenizer of one model.

    bos, eos: ids or None. eog: ids that end a generation. add_bos: whether the model wants BOS in front of a prompt.
    notes: what was assumed because the file does not say, or not done although it says so.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        model: TextModel,
        *,
        add_bos: bool,
        add_space_prefix: bool,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._vocab, self._model, self._space_prefix = vocab, model, add_space_prefix
        self.bos, self.eos, self.eog, self.add_bos = vocab.bos, vocab.eos, vocab.eog, add_bos
        self.notes = (*model.notes, *notes)
        self._special_ids = frozenset(vocab.of_kind(Kind.CONTROL, Kind.UNKNOWN))
        self._user_ids = frozenset(vocab.of_kind(Kind.USER_DEFINED))
        self._bytes: dict[int, bytes] = {}
        tokens = vocab.tokens
        self._user = SpecialTokens({tokens[i]: i for i in self._user_ids})
        self._control = SpecialTokens({tokens[i]: i for i in self._special_ids})
        self._all = SpecialTokens({tokens[i]: i for i in self._special_ids | self._user_ids})

    @staticmethod
    def from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
        """Build the tokenizer that `tokenizer.ggml.*` describes.

        Raises FormatError for malformed metadata, UnsupportedError for a kind of tokenizer that is not implemented.
        """
        kind = metadata.get(PREFIX + "model")
        if kind is None:
            fail("model", "is missing: the file has no tokenizer")
        if kind not in _MODELS:
            raise UnsupportedError(
                f"tokenizer.ggml.model: {kind!r:.40} is not supported (supported: {', '.join(_MODELS)})"
            )
        vocab = Vocabulary.from_gguf(metadata)
        model = _MODELS[str(kind)](metadata, vocab)
        add_bos = flag(metadata, "add_bos_token", model.add_bos_default and vocab.bos is not None)
        if add_bos and vocab.bos is None:
            fail("add_bos_token", "is true, but there is no bos_token_id")
        prefix = flag(metadata, "add_space_prefix", model.add_space_prefix_default)
        # An end token behind a prompt would end it; files of text generators should not ask for one.
        ignored = ("tokenizer.ggml.add_eos_token is not used",) if flag(metadata, "add_eos_token", False) else ()
        return Tokenizer(vocab, model, add_bos=add_bos, add_space_prefix=prefix, notes=ignored)

    @property
    def vocab_size(self) -> int:
        return len(self._vocab.tokens)

    @property
    def space_prefix(self) -> bool:
        """Whether a space is put in front of text that starts a prompt or follows a special token."""
        return self._space_prefix

    def is_special(self, token_id: int) -> bool:
        """True for control and unknown tokens, which have a meaning but are not text."""
        return token_id in self._special_ids

    def is_user_defined(self, token_id: int) -> bool:
        """True for tokens of the user-defined kind."""
        return token_id in self._user_ids

    def token_text(self, token_id: int) -> str:
        """Text of a token as the vocabulary writes it."""
        return self._vocab.tokens[self._checked(token_id)]

    def control_pieces(self, text: str) -> list[str | int]:
        """`text` cut at control tokens: plain pieces and ids."""
        return self._control.split(text)

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        add_bos: bool | None = None,
        quoted: Mapping[int, str] | None = None,
    ) -> list[int]:
        """Ids of `text`.

        special: recognise control tokens in it (templates do; user text must not). add_bos: True, False, or None for
        what the model wants. quoted: a `str.translate` table that is applied after special tokens have been found, so
        what it brings in stays text. Raises PromptError for lone surrogates, which are not text in any encoding.
        """
        bad = _SURROGATE.search(text)
        if bad is not None:
            raise PromptError(
                f"the text has a lone surrogate ({bad[0]!r} at character {bad.start()}): not valid Unicode"
            )
        ids: list[int] = []
        if self.add_bos if add_bos is None else add_bos:
            if self.bos is None:
                raise PromptError("BOS was asked for, but the model has no BOS token")
            ids.append(self.bos)
        after_special = True
        for piece in (self._all if special else self._user).split(text):
            if isinstance(piece, int):
                ids.append(piece)
                after_special = True
                continue
            if quoted:
                piece = piece.translate(quoted)
            ids += self._model.encode(" " + piece if after_special and self._space_prefix else piece)
            after_special = False
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for; a control token gives the bytes of its name."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._model.token_bytes(self._checked(token_id))
        return known

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD. skip_special: leave control tokens out."""
        parts = Detokenizer(self, skip_special=skip_special)
        return b"".join(map(parts.push, ids)).decode("utf-8", "replace")

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._vocab.tokens):
            raise PromptError(f"token id {token_id} is outside of the vocabulary (0..{self.vocab_size - 1})")
        return token_id


class Detokenizer:
    """Bytes of tokens one after the other, without the spaces that encoding has put in front of text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special
        self._drop_space = tokenizer.space_prefix

    def push(self, token_id: int) -> bytes:
        """Bytes of the next token."""
        tok = self._tokenizer
        if tok.is_special(token_id):
            self._drop_space = tok.space_prefix
            return b"" if self._skip else tok.token_bytes(token_id)
        data = tok.token_bytes(token_id)
        if tok.is_user_defined(token_id):
            self._drop_space = tok.space_prefix
            return data
        if self._drop_space and data.startswith(b" "):
            data = data[1:]
        self._drop_space = False
        return data
