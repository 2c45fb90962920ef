"""Byte-level BPE (`tokenizer.ggml.model = gpt2`): merges over bytes, each byte written as one printable character.

The merging itself is done by the `tokenizers` library. Source: Radford et al., "Language Models are Unsupervised
Multitask Learners" (2019), section 2.2, and the byte table published with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from polykv.text.pretokenizers import PreTokenizer, pre_tokenizer
from polykv.text.vocab import PREFIX, Kind, Vocabulary, fail, strings


def _byte_table() -> dict[int, str]:
    """Byte -> character: printable Latin-1 characters stand for themselves, the other 68 bytes follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in printable}
    table.update((b, chr(0x100 + i)) for i, b in enumerate(b for b in range(256) if b not in table))
    return table


BYTE_TO_CHAR = _byte_table()
CHAR_TO_BYTE = {c: b for b, c in BYTE_TO_CHAR.items()}


# The library keeps some 100 bytes per token until it returns, so long texts go through it in parts. Every rule of
# `pretokenizers` ends a word between a letter or digit and white space, and looks at nothing before a word.
_CHUNK = 1 << 16
_CUT = re.compile(r"[^\W_](?=\s)")


class ByteLevelBpe:
    """Encoder and decoder of text without special tokens."""

    add_space_prefix_default = False
    add_bos_default: bool
    notes: tuple[str, ...]

    def __init__(self, metadata: Mapping[str, object], vocab: Vocabulary) -> None:
        name = metadata.get(PREFIX + "pre")
        # Files older than the key were made for the rule that is called "default" since.
        self.notes = () if name is not None else ("tokenizer.ggml.pre is missing: the rule `default` is used",)
        self.rule = pre_tokenizer("default" if name is None else str(name))
        self.add_bos_default = self.rule.add_bos
        self._vocab = vocab
        self._bpe = _build(strings(metadata, "merges"), self.rule, vocab)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Bytes that the vocabulary has no token for are left out, as llama.cpp does."""
        ids: list[int] = []
        start = 0
        while start < len(text):
            cut = _CUT.search(text, start + _CHUNK)
            end = len(text) if cut is None else cut.end()
            ids += self._bpe.encode_batch_fast([text[start:end]], add_special_tokens=False)[0].ids
            start = end
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token."""
        text = self._vocab.tokens[token_id]
        if self._vocab.kinds[token_id] in (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN):
            return text.encode()
        try:
            return bytes(map(CHAR_TO_BYTE.__getitem__, text))
        except KeyError:
            # A token written as plain text (padding entries of some vocabularies).
            return text.encode()


def _build(merges: Sequence[str], rule: PreTokenizer, vocab: Vocabulary) -> RustTokenizer:
    # The library copies it.
    known = dict(zip(vocab.tokens, range(len(vocab.tokens)), strict=True))
    pairs = []
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            fail("merges", f"entry {i} ({merge!r:.40}) is not two tokens that join to a third")
        pairs.append((left, right))
    # The library demands no particular order of ids, but takes an unused `unk` as a real token; so none is named.
    bpe = RustTokenizer(models.BPE(vocab=known, merges=pairs, ignore_merges=rule.whole_words))
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    missing = "".join(c for c in CHAR_TO_BYTE if c not in known)
    if missing:
        # The library would join the neighbours of a byte that has no token; they must stay apart.
        steps.append(
            pre_tokenizers.Split(Regex("[" + "".join(map("\\x{{{:x}}}".format, map(ord, missing))) + "]"), "removed")
        )
    bpe.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return bpe
