"""How byte-level BPE cuts text into words before merging: the named rules of `tokenizer.ggml.pre`.

Each rule is a list of regular expressions. The first cuts the text into its matches and the gaps between them, the
next cuts those pieces, and so on. They are the published expressions of the models' own tokenizers; a name is listed
here only if its expression is known for certain. llama.cpp computes the same words, but for `tekken`, `gpt-4o` and
`llama4`, where it approximates the treatment of combining marks; the rules here are the models' own.
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.errors import UnsupportedError


@dataclass(frozen=True)
class PreTokenizer:
    """Word-cutting rule. whole_words: a word that is a token needs no merges (`ignore_merges`)."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_LINES}"
_QWEN35 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
_LLAMA3 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_LINES}"
# Words that start with any run of capitals (or marks and caseless letters) and go on in small letters.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED}|{_LINES}"
_GPT4O = rf"{_LEAD}{_UPPER}*{_LOWER}+{_SUFFIX}?|{_LEAD}{_UPPER}+{_LOWER}*{_SUFFIX}?|\p{{N}}{{1,3}}|{_SLASHED}|{_LINES}"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"
)

_RULES: tuple[tuple[PreTokenizer, tuple[str, ...]], ...] = (
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        ("default",),
    ),
    (
        PreTokenizer((_GPT2,)),
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "trillion", "granite-docling", "mellum"),
    ),
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    ),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")), ("falcon",)),
    (PreTokenizer((_QWEN2,)), ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2", "solar-open")),
    (PreTokenizer((_QWEN35,)), ("qwen35",)),
    (
        PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True),
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"),
    ),
    (PreTokenizer((_LLAMA3,), whole_words=True), ("glm4",)),
    (PreTokenizer((_LLAMA3,)), ("chatglm-bpe", "dbrx", "smaug-bpe")),
    (PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True), ("tekken",)),
    (PreTokenizer((_GPT4O,)), ("gpt-4o", "llama4")),
    (PreTokenizer((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)), ("deepseek-v3",)),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: rule for rule, names in _RULES for name in names}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rule called `name`. Raises UnsupportedError for a name that is not listed: a guess would change the ids."""
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedError(f"tokenizer.ggml.pre: {name!r:.60} is not a known pre-tokenizer (known: {known})")
    return PRE_TOKENIZERS[name]
