"""The tiers: one `Codec` per name, and the parser of `--kv K/V`.

Constants come from `data/tables`; what the constants mean is in `polykv.types.Codec` and docs/FORMATS.md.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import lru_cache
from itertools import groupby

from polykv.cache.codecs.lloyd_max import turbo2, turbo3, turbo4, turbo4_ep, turbo8
from polykv.cache.codecs.plain import bf16, f16, f32
from polykv.cache.codecs.scalar import iq4_nl, q4_0, q4_1, q5_0, q5_1, q6_0, q8_0
from polykv.cache.codecs.tables import SIGNS_ID, signs
from polykv.cache.codecs.trellis import turbo2_tcq, turbo2_tcq_n, turbo3_tcq, turbo3_tcq_n
from polykv.config import Tier
from polykv.errors import ConfigError
from polykv.types import UNIT, Codec, Family

# f32 is for tests and for measuring what compression costs; it is legal but not listed among the tiers to choose.
_PLAIN = (f32(), f16(), bf16())
_SCALAR = (q8_0(), q6_0(), q5_1(), q5_0(), q4_1(), q4_0(), iq4_nl())
_ROTATED = (turbo8(), turbo4(), turbo4_ep(), turbo3(), turbo2(), turbo3_tcq(), turbo2_tcq())
_TRAINED = (turbo3_tcq_n(), turbo2_tcq_n())
# What is used when nothing is asked for.
DEFAULT_KV = "q8_0/turbo3"
CODECS: dict[str, Codec] = {c.name: c for c in (*_PLAIN, *_SCALAR, *_ROTATED, *_TRAINED)}

# Other spellings of the same types: the names that the forks' sources and plans have for them (docs/FORMATS.md).
SPELLINGS = {f"{family}{bits}_0": f"turbo{bits}" for family in ("turbo", "tbq") for bits in (8, 4, 3, 2)}

# Scalar types in rotated space.
VARIANTS = tuple(f"{c.name}+r" for c in _SCALAR)
# Options of a tier, and the most positions that they may name: sinks lie in the first unit.
OPTIONS = {"sink": UNIT, "recent": 1 << 16}


@lru_cache
def codec(name: str) -> Codec:
    """The codec called `name`: one of `CODECS`, with additions `+r` (a scalar type in rotated space) and `+c` (vectors
    less the mean of their unit, for keys). Capitals and the spellings of `SPELLINGS` name the same types.

    >>> codec("q8_0").block_bytes, codec("q8_0+r").rotated, codec("turbo4+c").centered, codec("TBQ3_0").name
    (34, True, True, 'turbo3')

    Raises ConfigError for an unknown name, and for a type that `+r` makes no sense with.
    """
    given, *marks = name.split("+")
    base = SPELLINGS.get(given.lower(), given.lower())
    if base not in CODECS:
        raise ConfigError(f"unknown K/V type {given!r}; known: {', '.join(CODECS)}")
    if set(marks) - {"r", "c"} or len(set(marks)) < len(marks):
        raise ConfigError(
            f"unknown addition '+{'+'.join(marks)}' in {name!r}; there are +r (rotated) and +c (centered)"
        )
    found = CODECS[base]
    if "r" in marks:
        if found not in _SCALAR:
            reason = f"{base} is rotated already" if found.rotated else f"there is nothing to gain for {base}"
            raise ConfigError(f"{name!r}: {reason}; +r is for {', '.join(c.name for c in _SCALAR)}")
        found = dataclasses.replace(found, name=f"{base}+r", rotation=signs(), table_id=SIGNS_ID)
    if "c" in marks:
        found = dataclasses.replace(found, name=f"{found.name}+c", centered=True)
    return found


def exact_codecs(tier: Tier) -> tuple[Codec, Codec]:
    """Types in which cells are kept that are not coded, or not yet, and from which they are coded when their unit is
    complete (docs/CENTERED.md): K as float16, V in 8 bits, which cost values next to nothing.

    float32 stays float32: it is the truth that tests compare with. Values that will be floats are so from the start.

    >>> [c.name for c in exact_codecs(parse_tier("turbo4+c/turbo3"))], [c.name for c in exact_codecs(parse_tier("f32"))]
    (['f16', 'q8_0'], ['f32', 'f32'])
    """
    kinds = {Family.F32: "f32", Family.F16: "f16", Family.BF16: "f16"}
    return CODECS[kinds.get(tier.k.family, "f16")], CODECS[kinds.get(tier.v.family, "q8_0")]


def parse_tier(text: str) -> Tier:
    """`K/V`, or one name for both, either with options `,sink=N` and `,recent=N` behind it.

    >>> str(parse_tier("q8_0/turbo3")), str(parse_tier("f16")), str(parse_tier("turbo4+c,sink=4/turbo3"))
    ('q8_0/turbo3', 'f16/f16', 'turbo4+c/turbo3,sink=4')

    Raises ConfigError for an unknown type or option, for options given twice, and for V that would be centered.
    """
    sides = [side.split(",") for side in text.split("/", 1)]
    options: dict[str, int] = {}
    for item in (item for side in sides for item in side[1:]):
        option, n = _option(item)
        if option in options:
            raise ConfigError(f"--kv: {option} is given twice for {text!r}; it is one for K and V")
        options[option] = n
    k, v = (codec(side[0].strip()) for side in (sides[0], sides[-1]))
    if v.centered:
        raise ConfigError(f"--kv: {v.name} would hold V in {text!r}; +c is for K: {v.name}/{v.name.removesuffix('+c')}")
    return Tier(k, v, **options)


def parse_tiers(text: str, n_layers: int) -> tuple[Tier, ...]:
    """One tier per layer from `TIER[,LAYERS=TIER...]`; LAYERS is `i`, `i-j`, or `-n` for the last n layers.

    >>> [str(t) for t in parse_tiers("q8_0/turbo3,0=f16,-1=q8_0,sink=4", 3)]
    ['f16/f16', 'q8_0/turbo3', 'q8_0/q8_0,sink=4']

    Raises ConfigError for an unknown type or a layer that the model does not have.
    """
    items: list[str] = []
    for item in (p.strip() for p in text.split(",")):
        # An option belongs to the tier before it.
        if items and item.partition("=")[0].strip() in OPTIONS:
            items[-1] += f",{item}"
        else:
            items.append(item)
    tiers = [parse_tier(items[0])] * n_layers
    for item in items[1:]:
        where, eq, name = item.partition("=")
        if not eq:
            raise ConfigError(f"--kv: {item!r} is not LAYERS=TIER")
        for i in _layers(where.strip(), n_layers):
            tiers[i] = parse_tier(name.strip())
    return tuple(tiers)


def tiers_text(tiers: tuple[Tier, ...]) -> str:
    """The shortest text for `parse_tiers` that gives these tiers: the most frequent one, then runs of others.

    >>> tiers_text(parse_tiers("q8_0/turbo3,0=f16,3-4=q8_0", 6))
    'q8_0/turbo3,0=f16/f16,3-4=q8_0/q8_0'
    """
    names = [str(t) for t in tiers]
    first, parts = Counter(names).most_common(1)[0][0], []
    for name, run in groupby(range(len(names)), key=names.__getitem__):
        layers = list(run)
        if name != first:
            where = str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
            parts.append(f",{where}={name}")
    return first + "".join(parts)


def _option(text: str) -> tuple[str, int]:
    """Name and number of `sink=N` or `recent=N`."""
    name, _, number = (part.strip() for part in text.partition("="))
    if name not in OPTIONS:
        raise ConfigError(f"--kv: {text.strip()!r} is not an option of a tier; there are {', '.join(OPTIONS)}")
    if not (number.isascii() and number.isdigit() and len(number) < 9):
        raise ConfigError(f"--kv: {name}={number!r} is not a number of positions")
    if int(number) > OPTIONS[name]:
        raise ConfigError(f"--kv: {name}={number} is more than {OPTIONS[name]}, the most positions that may stay exact")
    return name, int(number)


def _layers(where: str, n_layers: int) -> range:
    try:
        if where.startswith("-"):
            lo, hi = n_layers - int(where[1:]), n_layers - 1
        else:
            a, dash, b = where.partition("-")
            lo, hi = int(a), int(b) if dash else int(a)
    except ValueError:
        raise ConfigError(
            f"--kv: {where!r} is not a layer, a range i-j, or -n; nor is it {' or '.join(OPTIONS)}"
        ) from None
    if not 0 <= lo <= hi < n_layers:
        raise ConfigError(f"--kv: layers {where!r} are outside 0..{n_layers - 1}")
    return range(lo, hi + 1)
