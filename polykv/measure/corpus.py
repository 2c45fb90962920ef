"""Many vectors of one head_dim to train a codebook on: draws from N(0, 1), or K and V that a model makes of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np

from polykv.errors import ConfigError
from polykv.measure.samples import TOKENS, keys_and_values
from polykv.model.loader import Model
from polykv.ops import LoadedOps
from polykv.types import F32

# A text is read in pieces of so many tokens, each by itself, of which the last TOKENS are kept: no vector is that of a
# first token, where models park attention, and memory does not grow with the text.
PIECE = 2 * TOKENS


class Side(StrEnum):
    """Which vectors of a layer."""

    K = "k"
    V = "v"
    BOTH = "both"


def gaussian(values: int, head_dim: int, seed: int | Sequence[int]) -> F32:
    """About `values` draws from N(0, 1) as vectors [n, head_dim]."""
    n = max(1, values // head_dim)
    return np.random.default_rng(seed).standard_normal((n, head_dim), np.float32)


def of_text(
    model: Model,
    ids: list[int],
    ops: LoadedOps,
    *,
    side: Side = Side.BOTH,
    values: int = 1 << 19,
    seed: int = 0,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> F32:
    """K (after rope) and V vectors [n, head_dim] of the tokens `ids` in all layers that have the head_dim of the first,
    about `values` numbers, as many from every piece of the text and drawn there by `seed`.

    on_progress(done, total, text) counts tokens. Raises ConfigError for a text of fewer than two tokens.
    """
    if len(ids) < 2:
        raise ConfigError("the text is too short to take K and V from: it has fewer than two tokens")
    dim = model.config.layers[0].head_dim
    starts = range(0, max(1, len(ids) - PIECE + 1), PIECE)
    wanted, rng, found = max(1, values // dim // len(starts)), np.random.default_rng(seed), []
    for at in starts:
        if on_progress:
            on_progress(at, len(ids), "reading")
        x = _vectors(model, ids[at : at + PIECE], ops, side, dim)
        found.append(x[rng.permutation(len(x))[:wanted]])
    return np.concatenate(found)


def _vectors(model: Model, ids: list[int], ops: LoadedOps, side: Side, dim: int) -> F32:
    """All vectors of a piece but those of its first token."""
    found = []
    for k, v in keys_and_values(model, ids, ops, None):
        for a in {Side.K: (k,), Side.V: (v,), Side.BOTH: (k, v)}[side]:
            if a.shape[2] == dim:
                found.append(a[-(len(ids) - 1) :].reshape(-1, dim))
    return np.concatenate(found)
