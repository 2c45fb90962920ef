"""The tiers: one `Codec` per name, and the parser of `--kv K/V`.

Constants come from `data/tables`; what the constants mean is in `polykv.types.Codec` and docs/FORMATS.md.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from polykv.cache.codecs.lloyd_max import turbo2, turbo3, turbo4, turbo4_ep, turbo8
from polykv.cache.codecs.plain import bf16, f16, f32
from polykv.cache.codecs.scalar import iq4_nl, q4_0, q4_1, q5_0, q5_1, q6_0, q8_0
from polykv.cache.codecs.trellis import turbo2_tcq, turbo2_tcq_n, turbo3_tcq, turbo3_tcq_n
from polykv.config import Tier
from polykv.errors import ConfigError
from polykv.types import Codec

# f32 is for tests and for measuring what compression costs; it is legal but not listed among the tiers to choose.
_PLAIN = (f32(), f16(), bf16())
_SCALAR = (q8_0(), q6_0(), q5_1(), q5_0(), q4_1(), q4_0(), iq4_nl())
_ROTATED = (turbo8(), turbo4(), turbo4_ep(), turbo3(), turbo2(), turbo3_tcq(), turbo2_tcq())
_TRAINED = (turbo3_tcq_n(), turbo2_tcq_n())
# What is used when nothing is asked for.
DEFAULT_KV = "q8_0/turbo3"
CODECS: dict[str, Codec] = {c.name: c for c in (*_PLAIN, *_SCALAR, *_ROTATED, *_TRAINED)}


def codec(name: str) -> Codec:
    """The codec called `name`.

    >>> codec("q8_0").block_bytes
    34
    """
    if name not in CODECS:
        raise ConfigError(f"unknown K/V type {name!r}; known: {', '.join(CODECS)}")
    return CODECS[name]


def parse_tier(text: str) -> Tier:
    """`K/V`, or one name for both.

    >>> str(parse_tier("q8_0/turbo3")), str(parse_tier("f16"))
    ('q8_0/turbo3', 'f16/f16')
    """
    k, _, v = text.partition("/")
    return Tier(codec(k), codec(v or k))


def parse_tiers(text: str, n_layers: int) -> tuple[Tier, ...]:
    """One tier per layer from `TIER[,LAYERS=TIER...]`; LAYERS is `i`, `i-j`, or `-n` for the last n layers.

    >>> [str(t) for t in parse_tiers("q8_0/turbo3,0=f16,-1=q8_0", 3)]
    ['f16/f16', 'q8_0/turbo3', 'q8_0/q8_0']

    Raises ConfigError for an unknown type or a layer that the model does not have.
    """
    first, *overrides = [p.strip() for p in text.split(",")]
    tiers = [parse_tier(first)] * n_layers
    for item in overrides:
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


def _layers(where: str, n_layers: int) -> range:
    try:
        if where.startswith("-"):
            lo, hi = n_layers - int(where[1:]), n_layers - 1
        else:
            a, dash, b = where.partition("-")
            lo, hi = int(a), int(b) if dash else int(a)
    except ValueError:
        raise ConfigError(f"--kv: {where!r} is not a layer, a range i-j, or -n") from None
    if not 0 <= lo <= hi < n_layers:
        raise ConfigError(f"--kv: layers {where!r} are outside 0..{n_layers - 1}")
    return range(lo, hi + 1)
