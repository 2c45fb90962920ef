"""Consistency of the tokenizer's metadata: lengths, types and ids. Building the tokenizer is `polykv.text`'s work."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polykv.errors import FormatError

_TOK = "tokenizer.ggml"
_IDS = ("bos", "eos", "unknown", "padding", "separator", "mask", "eot", "eom")


def check_vocabulary(path: Path, metadata: dict[str, object], rows: int) -> None:
    """Raise FormatError unless the vocabulary fits a model with `rows` embedding rows.

    Checked: one token per row, no token twice, one score and type per token, special ids inside the vocabulary, a
    BOS id when BOS is to be added, merges of two known tokens.
    """
    tokens = metadata.get(f"{_TOK}.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise FormatError(path, f"{_TOK}.tokens", "the vocabulary is missing or empty")
    if len(tokens) != rows:
        raise FormatError(path, f"{_TOK}.tokens", f"{len(tokens)} tokens, but token_embd.weight has {rows} rows")
    known = set(tokens)
    if len(known) != len(tokens):
        raise FormatError(path, f"{_TOK}.tokens", f"{len(tokens) - len(known)} tokens appear twice")
    for key, kinds in (("scores", "f"), ("token_type", "iu")):
        values = metadata.get(f"{_TOK}.{key}")
        if values is None:
            continue
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds or len(values) != rows:
            raise FormatError(path, f"{_TOK}.{key}", f"expected {rows} {'floats' if kinds == 'f' else 'integers'}")
    for name in _IDS:
        value = metadata.get(f"{_TOK}.{name}_token_id")
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < rows):
            raise FormatError(path, f"{_TOK}.{name}_token_id", f"{value!r:.80} is not an id below {rows}")
    for name in ("bos", "eos"):
        if metadata.get(f"{_TOK}.add_{name}_token") is True and metadata.get(f"{_TOK}.{name}_token_id") is None:
            raise FormatError(path, f"{_TOK}.add_{name}_token", f"is true, but there is no {name}_token_id")
    _check_merges(path, metadata.get(f"{_TOK}.merges"), known)


def _check_merges(path: Path, merges: object, known: set[str]) -> None:
    key = f"{_TOK}.merges"
    if merges is None:
        return
    if not isinstance(merges, list):
        raise FormatError(path, key, "expected a list of strings")
    for i, merge in enumerate(merges):
        # A space inside a token is written otherwise in byte-level vocabularies, so one space separates the two.
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            raise FormatError(path, key, f"entry {i} ({merge!r:.40}) is not two tokens that join to a third")
