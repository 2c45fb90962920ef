"""Whether the tokenizer's metadata fit the model: lengths and ids. Tokens themselves are checked by `polykv.text`."""

from __future__ import annotations

import reprlib
from pathlib import Path

import numpy as np

from polykv.errors import FormatError

_TOK = "tokenizer.ggml"
_IDS = ("bos", "eos", "unknown", "padding", "separator", "mask", "eot", "eom")


def check_vocabulary(path: Path, metadata: dict[str, object], rows: int) -> None:
    """Raise FormatError unless the vocabulary fits a model with `rows` embedding rows.

    Checked: one token per row, one score and one type per token, special ids inside the vocabulary, a BOS or EOS
    id when it is to be added.
    """
    tokens = metadata.get(f"{_TOK}.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise FormatError(path, f"{_TOK}.tokens", "the vocabulary is missing, empty or no list of strings")
    if len(tokens) != rows:
        raise FormatError(path, f"{_TOK}.tokens", f"{len(tokens)} tokens, but token_embd.weight has {rows} rows")
    for key, kinds, what in (("scores", "f", "floats"), ("token_type", "iu", "integers")):
        values = metadata.get(f"{_TOK}.{key}")
        if values is None:
            continue
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds or len(values) != rows:
            raise FormatError(path, f"{_TOK}.{key}", f"expected {rows} {what}, one per token")
    for name in _IDS:
        value = metadata.get(f"{_TOK}.{name}_token_id")
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < rows):
            raise FormatError(path, f"{_TOK}.{name}_token_id", f"{reprlib.repr(value)} is not an id below {rows}")
    for name in ("bos", "eos"):
        if metadata.get(f"{_TOK}.add_{name}_token") is True and metadata.get(f"{_TOK}.{name}_token_id") is None:
            raise FormatError(path, f"{_TOK}.add_{name}_token", f"is true, but there is no {name}_token_id")
