"""TurboQuant tiers: rotate, then one Lloyd-Max index per value and one fp16 norm per group.

The norm is taken before the rotation; the stored norm is corrected so that the decoded vector has exactly the
original length. Tables: data/tables (provenance in data/README.md); rules: docs/FORMATS.md.
"""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np

from polykv.types import Codec, Family


def turbo3() -> Codec:
    """3 bits per value and one norm per 128: 50 bytes per 128 values, 3.125 bits per value."""
    return _from_table("turbo3", bits=3, block_bytes=50)


def _from_table(name: str, bits: int, block_bytes: int) -> Codec:
    table = json.loads(files("polykv.data").joinpath(f"tables/{name}.json").read_text())
    signs = json.loads(files("polykv.data").joinpath("tables/wht_signs.json").read_text())

    def f32(values: list[float]) -> tuple[float, ...]:
        return tuple(float(v) for v in np.asarray(values, np.float32))

    def plus_minus(text: str) -> tuple[float, ...]:
        return tuple(1.0 if c == "+" else -1.0 for c in text)

    return Codec(
        name,
        Family.LLOYD_MAX,
        bits=bits,
        block=128,
        block_bytes=block_bytes,
        centroids=f32(table["centroids"]),
        thresholds=f32(table["thresholds"]),
        signs1=plus_minus(signs["signs1"]),
        signs2=plus_minus(signs["signs2"]),
        table_id=table["id"],
    )
