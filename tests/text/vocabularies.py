"""Small vocabularies for tests, as the metadata of a GGUF file."""

from __future__ import annotations

from polykv.text.bytelevel import BYTE_TO_CHAR

CONTROL = ["<s>", "</s>", "<|turn|>", "<|turn|><s>"]
USER_DEFINED = ["  ", "   ", "\n\n", "<b>"]
_MERGES = [
    "t h",
    "th e",
    "Ġ the",
    "Ġ a",
    "a n",
    "an d",
    "Ġ t",
    "i n",
    "in g",
    "Ġ Ġ",
    "l l",
    "o w",
    "Ã ©",
    "ð Ł",
    "ðŁ ĺ",
]
_PIECES = [
    "▁t",
    "he",
    "▁the",
    "th",
    "the",
    "▁a",
    "an",
    "and",
    "in",
    "ing",
    "ll",
    "▁▁",
    "▁▁▁▁",
    "aa",
    "aaaa",
    ">▁<",
    "é",
]


def byte_level(**more: object) -> dict[str, object]:
    """A byte-level vocabulary with all bytes; keyword arguments replace keys of `tokenizer.ggml` (None removes)."""
    tokens = [*CONTROL, *BYTE_TO_CHAR.values()]
    tokens += [merge.replace(" ", "") for merge in _MERGES]
    tokens += USER_DEFINED
    kinds = [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL) - len(USER_DEFINED)) + [4] * len(USER_DEFINED)
    return _metadata(
        {"model": "gpt2", "pre": "qwen2", "tokens": tokens, "token_type": kinds, "merges": _MERGES, "bos_token_id": 0},
        more,
    )


def sentencepiece(**more: object) -> dict[str, object]:
    """A vocabulary with scores and byte tokens; keyword arguments as above."""
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    chars = list("▁abcdefghijklmnopqrstuvwxyz<>.")
    pieces = [*_PIECES, *chars]
    tokens = ["<unk>", *CONTROL, *bytes_, *pieces, *USER_DEFINED]
    kinds = [2] + [3] * len(CONTROL) + [6] * 256 + [1] * len(pieces) + [4] * len(USER_DEFINED)
    scores = [0.0] * (261) + [-float(i) for i in range(len(pieces))] + [0.0] * len(USER_DEFINED)
    return _metadata(
        {
            "model": "llama",
            "tokens": tokens,
            "token_type": kinds,
            "scores": scores,
            "bos_token_id": 1,
            "unknown_token_id": 0,
        },
        more,
    )


def _metadata(base: dict[str, object], more: dict[str, object]) -> dict[str, object]:
    keys = {**base, "eos_token_id": base["bos_token_id"] + 1, **more}  # type: ignore[operator]
    return {f"tokenizer.ggml.{k}": v for k, v in keys.items() if v is not None}
