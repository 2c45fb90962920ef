"""TurboQuant types: rotate, then one Lloyd-Max index per value and one fp16 norm per group.

The norm is taken before the rotation; the stored norm is corrected so that the decoded vector has exactly the
original length. Tables: data/tables (provenance in data/README.md); rules: docs/FORMATS.md.
"""

from __future__ import annotations

from polykv.cache.codecs.tables import read, signs, singles
from polykv.types import Codec, Family


def turbo2() -> Codec:
    """2 bits per value and one norm per 128: 34 bytes per 128 values, 2.125 bits per value."""
    return _from_table("turbo2", bits=2, block_bytes=34)


def turbo3() -> Codec:
    """3 bits per value and one norm per 128: 50 bytes per 128 values, 3.125 bits per value."""
    return _from_table("turbo3", bits=3, block_bytes=50)


def turbo4() -> Codec:
    """4 bits per value with the Lloyd-Max table. 68 bytes per 128 values in the exchange layout, which has a reserved
    word; 66 in memory, 4.125 bits per value."""
    return _from_table("turbo4", bits=4, block_bytes=68)


def turbo4_ep() -> Codec:
    """turbo4 with the other published table: the means of 16 bins of equal probability, twice the squared error."""
    return _from_table("turbo4_ep", bits=4, block_bytes=68)


def turbo8() -> Codec:
    """8 bits per value and one norm per 128: 130 bytes per 128 values, 8.125 bits per value."""
    return _from_table("turbo8", bits=8, block_bytes=130)


def _from_table(name: str, bits: int, block_bytes: int) -> Codec:
    table = read(name)
    return Codec(
        name,
        Family.LLOYD_MAX,
        bits=bits,
        block=128,
        block_bytes=block_bytes,
        centroids=singles(table["centroids"]),
        thresholds=singles(table["thresholds"]),
        rotation=signs(),
        table_id=table["id"],
    )
