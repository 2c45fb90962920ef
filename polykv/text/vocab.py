"""The vocabulary of a model, checked: token texts, kinds, scores and the ids that have a role.

Source of keys and meanings: the GGUF metadata `tokenizer.ggml.*`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from polykv.errors import FormatError
from polykv.text.token_index import TokenIndex

PREFIX = "tokenizer.ggml."
_WHERE = "model metadata"


class Kind(IntEnum):
    """What a token is, numbered as in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Tokens that end a turn in some model family; the eos/eot/eom ids of the file come on top. The list is llama.cpp's, so
# that a model stops at the same place here; that includes `</s>`, which in Gemma's vocabulary closes a markup element.
_END_NAMES = (
    *("<eos>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<turn|>"),
    *(
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|eot_id|>",
        "<|eom_id|>",
    ),
    *("<end_of_turn>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
)
# Marks of fill-in-the-middle prompts: control tokens too, whatever the file says.
_CONTROL_NAMES = (
    *(
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<PRE>",
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<SUF>",
    ),
    *(
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<MID>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
    ),
    *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
)


# Tokens with a role, by the names of their `<role>_token_id` keys; all must lie in the vocabulary, also unused ones.
_ROLES = ("bos", "eos", "unknown", "eot", "eom", "padding", "separator", "mask")


def fail(key: str, reason: str) -> NoReturn:
    """Raise FormatError for a `tokenizer.ggml` key."""
    raise FormatError(_WHERE, PREFIX + key, reason)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Checked vocabulary: tokens[i] is the text of id i as the file has it.

    kinds uint8 [V], scores float32 [V] or None. eog: ids that end a generation. ids: text -> id.
    """

    tokens: Sequence[str]
    kinds: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float32] | None
    bos: int | None
    eos: int | None
    unk: int | None
    eog: frozenset[int]
    ids: TokenIndex = field(repr=False)

    def of_kind(self, *kinds: Kind) -> list[int]:
        """Ids of the given kinds, ascending."""
        out: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return out

    @staticmethod
    def from_gguf(metadata: Mapping[str, object]) -> Vocabulary:
        """Read and check `tokenizer.ggml.{tokens,token_type,scores,*_token_id}`.

        Raises FormatError on an empty vocabulary, a token twice, arrays of another length, ids outside of it.
        """
        tokens = _texts(metadata, "tokens")
        if not tokens:
            fail("tokens", "the vocabulary is missing or empty")
        n = len(tokens)
        ids = TokenIndex(tokens)
        if (twice := ids.repeated()) is not None:
            fail("tokens", f"token {twice!r:.60} appears twice")
        kinds = _kinds(metadata, n)
        scores = _numbers(metadata, "scores", n, "fiu")
        if scores is not None and not np.isfinite(scores).all():
            fail("scores", "a score is not a finite number")
        role = {name: _id(metadata, name, n) for name in _ROLES}
        named = [ids[t] for t in _END_NAMES if t in ids]
        if "<|return|>" in ids and "<|call|>" in ids and "<|end|>" in ids:
            # In this family (harmony) `<|end|>` closes a message, and the turn goes on.
            named.remove(ids["<|end|>"])
        ends = frozenset(i for i in (role["eos"], role["eot"], role["eom"], *named) if i is not None)
        # Some converters leave end-of-turn tokens as ordinary text; as control tokens they are parsed from templates
        # and never from user text.
        kinds[[*named, *(ids[t] for t in _CONTROL_NAMES if t in ids)]] = Kind.CONTROL
        return Vocabulary(
            tokens,
            kinds,
            None if scores is None else scores.astype(np.float32),
            role["bos"],
            role["eos"],
            role["unknown"],
            ends,
            ids,
        )


def flag(metadata: Mapping[str, object], name: str, default: bool) -> bool:
    """A boolean key, or `default` when it is absent."""
    value = metadata.get(PREFIX + name, default)
    if not isinstance(value, bool | np.bool_):
        fail(name, f"expected true or false, found {value!r:.40}")
    return bool(value)


def strings(metadata: Mapping[str, object], name: str) -> Sequence[str]:
    """An array of strings; FormatError when it is missing or holds anything else."""
    return _texts(metadata, name)


def _texts(metadata: Mapping[str, object], name: str) -> Sequence[str]:
    value = metadata.get(PREFIX + name, ())
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        fail(name, "expected an array of strings")
    # Arrays of a file are of one type, and made into strings one by one: looking at all would take as long as loading.
    if not all(map(str.__instancecheck__, value if isinstance(value, list | tuple) else value[:1])):
        fail(name, "expected an array of strings, found another type in it")
    return value


def _kinds(metadata: Mapping[str, object], n: int) -> npt.NDArray[np.uint8]:
    values = _numbers(metadata, "token_type", n, "iu")
    if values is None:
        return np.full(n, Kind.NORMAL, np.uint8)
    if values.min() < 0 or values.max() > Kind.BYTE:
        fail("token_type", f"values must be 0..{int(Kind.BYTE)}")
    return values.astype(np.uint8)


def _numbers(metadata: Mapping[str, object], name: str, n: int, dtypes: str) -> npt.NDArray[Any] | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    try:
        array = np.asarray(value)
    except ValueError:
        fail(name, "expected a flat array of numbers")
    if array.ndim != 1 or array.dtype.kind not in dtypes:
        fail(name, f"expected an array of numbers, found {array.dtype} with {array.ndim} dimensions")
    if len(array) != n:
        fail(name, f"has {len(array)} entries for {n} tokens")
    return array


def _id(metadata: Mapping[str, object], name: str, n: int) -> int | None:
    key = f"{name}_token_id"
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < n:
        fail(key, f"{value!r:.40} is not an id of the vocabulary (0..{n - 1})")
    return int(value)
