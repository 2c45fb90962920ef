"""What K/V belongs to. Two caches may exchange blocks exactly when their identities are equal.

The identity seeds the prefix hash and is written into every pool file. Size is not identity: two types can have
rows of equal size, and equal shapes say nothing about the rope angles that went into K.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields

from polykv.cache.calibration import NONE
from polykv.cache.codecs import exact_codecs
from polykv.config import CacheConfig, ModelConfig, Tier
from polykv.errors import FormatError, MismatchError

# 1: rotated types padded every head to whole groups of 128 values. 2: packed layout, the codes of memory (FORMATS.md).
FORMAT_VERSION = 2

_ANEW = (
    "an earlier polykv wrote the file, in codes that are no longer used: read the document again and save it anew "
    "(polykv ask DOCUMENT --save FILE, or llm.pool(text).save(path))"
)

# Identity field -> (words for a message, are its items per layer?)
_WORDS: dict[str, tuple[str, bool]] = {
    "version": ("cache format version", False),
    "model": ("model", False),
    "block_size": ("block size", False),
    "head_dims": ("head_dim", True),
    "n_kv": ("number of kv heads", True),
    "windows": ("attention window", True),
    "tiers": ("tier", True),
    "tables": ("codec table", True),
    "ropes": ("rope", True),
    "calibration": ("calibration", False),
    "exact": ("type of exact cells", False),
    "means": ("type of the means of centered keys", False),
}
# What an earlier polykv kept exact cells and means in.
_HALF, _HALVES = "f16", "f16/f16"
# Fields that are written only when they say something: files that have nothing of the kind stay as they were before.
_OPTIONAL = {"calibration": NONE, "exact": _HALVES, "means": _HALF}


@dataclass(frozen=True)
class Identity:
    """Everything that decides what the bytes of a block mean; tuples have one item per layer.

    model: fingerprint of the weights. windows: 0 = full attention. tables: ids of the codebooks of K and V.
    calibration: `Calibration.identity` of the factors that stored channels are multiplied with. exact, means: types of
    exact cells and of means (docs/CENTERED.md), f16 where there are none.
    """

    version: int
    model: str
    block_size: int
    head_dims: tuple[int, ...]
    n_kv: tuple[int, ...]
    windows: tuple[int, ...]
    tiers: tuple[str, ...]
    tables: tuple[str, ...]
    ropes: tuple[str, ...]
    calibration: str = NONE
    exact: str = _HALVES
    means: str = _HALF

    @staticmethod
    def of(model: ModelConfig, cache: CacheConfig, fingerprint: str) -> Identity:
        """The identity of a cache of this model; `fingerprint` names its weights."""
        return Identity(
            FORMAT_VERSION,
            fingerprint,
            cache.block_size,
            tuple(layer.head_dim for layer in model.layers),
            tuple(layer.n_kv for layer in model.layers),
            tuple(layer.window for layer in model.layers),
            tuple(str(t) for t in cache.tiers),
            tuple(f"{t.k.table_id}/{t.v.table_id}" for t in cache.tiers),
            tuple(_short(layer.rope.identity()) for layer in model.layers),
            exact=_exact(cache.tiers),
            means="q8_0" if any(t.k.centered for t in cache.tiers) else _HALF,
        )

    def check(self, other: Identity, models: tuple[str, str] | None = None) -> None:
        """Raise MismatchError naming the first field in which `other` (a file's) differs from this session's, and
        the names of the file's and the session's model, if given."""
        for name, (words, per_layer) in _WORDS.items():
            want, have = getattr(self, name), getattr(other, name)
            if want == have:
                continue
            if per_layer and len(want) != len(have):
                raise MismatchError("number of layers", len(have), len(want), models)
            if per_layer:
                i = next(i for i, (a, b) in enumerate(zip(want, have, strict=True)) if a != b)
                raise MismatchError(f"{words} of layer {i}", have[i], want[i], models)
            raise MismatchError(words, have, want, models)

    def hash_seed(self) -> bytes:
        """h_0 of the prefix hash: blocks of another identity are never found."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).digest()

    def to_json(self) -> str:
        told = {name: value for name, value in asdict(self).items() if value != _OPTIONAL.get(name)}
        return json.dumps(told, sort_keys=True)

    @staticmethod
    def from_json(text: str, where: object) -> Identity:
        """Parse what `to_json` wrote in file `where`; raises FormatError for anything else."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError):
            raise FormatError(where, "identity", "is not JSON") from None
        if isinstance(raw, dict) and type(raw.get("version")) is int and raw["version"] != FORMAT_VERSION:
            # Another version may have other fields: name the version, not the first unknown field.
            advice = "a later polykv wrote it" if raw["version"] > FORMAT_VERSION else _ANEW
            raise MismatchError(_WORDS["version"][0], raw["version"], FORMAT_VERSION, advice=advice)
        names = {f.name for f in fields(Identity)}
        if not isinstance(raw, dict) or not names - set(_OPTIONAL) <= set(raw) <= names:
            raise FormatError(where, "identity", f"must have exactly the fields {', '.join(_WORDS)}")
        raw = _OPTIONAL | raw
        values: dict[str, object] = {}
        for f in fields(Identity):
            item = int if "int" in str(f.type) else str
            value = raw[f.name]
            if _WORDS[f.name][1]:
                if not isinstance(value, list) or any(type(v) is not item for v in value):
                    raise FormatError(where, f"identity.{f.name}", f"must be a list of {item.__name__}")
                value = tuple(value)
            elif type(value) is not item:
                raise FormatError(where, f"identity.{f.name}", f"must be {item.__name__}")
            if any(len(v) > 512 for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, str)):
                # It would end up in an error message.
                raise FormatError(where, f"identity.{f.name}", "has a text of more than 512 characters")
            values[f.name] = value
        return Identity(**values)  # type: ignore[arg-type]


def _exact(tiers: tuple[Tier, ...]) -> str:
    """Types of exact cells, K/V, of all tiers that have some."""
    return ",".join(sorted({"/".join(c.name for c in exact_codecs(t)) for t in tiers if t.staged})) or _HALVES


def _short(text: str) -> str:
    """Long texts (frequency factors) as a head and a digest, so that a message that shows both stays readable."""
    if len(text) <= 96:
        return text
    return f"{text[:64]}...{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
