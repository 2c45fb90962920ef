"""Trellis-coded types: rotate, then a path through a trellis whose states are entries of one codebook.

The codebook is a field of the codec, so encoding, decoding and attention cannot see different ones, and another
codebook is another codec: its `table_id` separates caches and files. Rules: docs/FORMATS.md, polykv/ref/trellis.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from polykv.cache.codecs.tables import read, signs, singles
from polykv.config import Tier
from polykv.errors import ConfigError, FormatError
from polykv.types import Codec, Family


def turbo3_tcq() -> Codec:
    """3 bits per value, 512 states, one norm per 128: 51 bytes per 128 values (52 in the exchange layout)."""
    return _from_table("turbo3_tcq", bits=3, block_bytes=52)


def turbo2_tcq() -> Codec:
    """2 bits per value, 256 states, one norm per 128: 35 bytes per 128 values (36 in the exchange layout)."""
    return _from_table("turbo2_tcq", bits=2, block_bytes=36)


def turbo3_tcq_n() -> Codec:
    """turbo3_tcq with a codebook trained on N(0, 1): 14 % less squared error in the same bytes, which other programs
    would decode with the wrong table."""
    return _from_table("turbo3_tcq_n", bits=3, block_bytes=52)


def turbo2_tcq_n() -> Codec:
    """turbo2_tcq with a codebook trained on N(0, 1): 9 % less squared error in the same bytes."""
    return _from_table("turbo2_tcq_n", bits=2, block_bytes=36)


def with_codebook(codec: Codec, path: str | Path) -> Codec:
    """The trellis type with the codebook of a file: raw little-endian float32, one per state.

    Raises ConfigError for a type without a trellis, FormatError for a file that cannot be read, has another size, or
    holds bad values.
    """
    if codec.family != Family.TRELLIS:
        raise ConfigError(f"{codec.name} has no codebook of states that a file could replace")
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as e:
        raise FormatError(path, "codebook", f"cannot be read: {getattr(e, 'strerror', None) or e}") from None
    n = len(codec.centroids)
    if len(data) != 4 * n:
        raise FormatError(path, "codebook", f"has {len(data)} bytes; {codec.name} needs {n} float32, {4 * n} bytes")
    values = np.frombuffer(data, "<f4")
    if not (np.abs(values) <= 1).all():
        raise FormatError(path, "codebook", "has values outside -1..1, the range of a unit-norm vector")
    if not values.any():
        raise FormatError(path, "codebook", "has nothing but zeros")
    name = f"{codec.name}-file-{hashlib.blake2b(data, digest_size=8).hexdigest()}"
    return dataclasses.replace(codec, centroids=tuple(float(v) for v in values), table_id=name)


def with_codebooks(tiers: tuple[Tier, ...], paths: Iterable[str | Path]) -> tuple[Tier, ...]:
    """Tiers whose trellis types have the codebooks of files; a file is for the types with as many states as it has
    entries.

    Raises ConfigError when no type of the tiers has a codebook, FormatError for a file that fits none of them.
    """
    for path in paths:
        found = [c for tier in tiers for c in (tier.k, tier.v) if c.family == Family.TRELLIS]
        if not found:
            raise ConfigError(f"{path}: a codebook is for a trellis type, of which there is none in {tiers[0]}")
        size = Path(path).stat().st_size if Path(path).is_file() else 0
        # A file that fits none is refused with the size that the first of them needs.
        first = with_codebook(next((c for c in found if 4 * len(c.centroids) == size), found[0]), path)
        tiers = tuple(dataclasses.replace(t, k=_like(first, t.k, path), v=_like(first, t.v, path)) for t in tiers)
    return tiers


def _like(own: Codec, c: Codec, path: str | Path) -> Codec:
    """c with the codebook of the file that `own` has it from, if it is a trellis type of as many states."""
    fits = c.family == Family.TRELLIS and len(c.centroids) == len(own.centroids)
    return with_codebook(c, path) if fits else c


def _from_table(name: str, bits: int, block_bytes: int) -> Codec:
    table = read(name)
    return Codec(
        name,
        Family.TRELLIS,
        bits=bits,
        block=128,
        block_bytes=block_bytes,
        centroids=singles(table["centroids"]),
        rotation=signs(),
        table_id=table["id"],
    )
