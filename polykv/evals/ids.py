"""Token ids as a short text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def ids_digest(parts: Iterable[Iterable[int]]) -> str:
    """Tells lists of token ids apart."""
    h = hashlib.blake2b(digest_size=8)
    for part in parts:
        ids = np.array(list(part), "<i8")
        h.update(ids.size.to_bytes(8, "little") + ids.tobytes())
    return h.hexdigest()
