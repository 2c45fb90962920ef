"""Reading the constants of rotated types from data/tables: signs of the rotation, levels, thresholds, codebooks."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from polykv.types import F32, Signs

# Names the rotation of scalar types: a cache belongs to it as others do to their tables.
SIGNS_ID = "wht-signs-42"


def read(name: str) -> dict[str, Any]:
    """The table `name` of data/tables."""
    found: dict[str, Any] = json.loads(files("polykv.data").joinpath(f"tables/{name}.json").read_text())
    return found


def singles(values: list[float]) -> tuple[float, ...]:
    """Numbers as float32 has them."""
    return tuple(float(v) for v in np.asarray(values, np.float32))


@lru_cache(maxsize=1)
def signs() -> Signs:
    """The signs that all rotated types share; one object, so that equal codecs compare equal."""
    table = read("wht_signs")

    def plus_minus(text: str) -> F32:
        a = np.array([1 if c == "+" else -1 for c in text], np.float32)
        a.flags.writeable = False
        return a

    wide = {int(g): (plus_minus(first), plus_minus(second)) for g, (first, second) in table["wide"].items()}
    return Signs((plus_minus(table["signs1"]), plus_minus(table["signs2"])), wide)
