"""Two rules that choose factors for the channels of K or V from their mean squares.

A rotated codec spreads the rounding error of a vector evenly over its channels: with factors s on the channels of a
key k, each channel of s k gets the error e^2 ~ sum s^2 k^2, which is e^2 / s^2 once the factors are undone. A score
q.k then has the error

    sum_c q_c^2 e^2 / s_c^2  ~  (sum_c s_c^2 k_c^2) (sum_c q_c^2 / s_c^2)

`balanced` minimises this product over s (Cauchy and Schwarz): s_c = sqrt(|q_c| / |k_c|), root mean squares over a text.
`innerq` is the rule of the sources, which looks at keys alone: s_c = (mean |k| / |k_c|)^strength within 1/2 to 2. It is
the best one when all channels of the queries are alike. They are not: channels with large keys have large queries
too, and then it makes the error larger (docs/CALIBRATION.md).

For values the error of channel c counts with |o_c|, the length of its column of Wo, in place of |q_c|.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from polykv.errors import ConfigError
from polykv.types import F32

F64 = npt.NDArray[np.float64]

STRENGTH = 0.5
# `innerq`: factors end here, and nothing is scaled when no channel is further than BALANCED from the mean.
LIMIT, BALANCED = 2.0, 1.2
# `balanced`: a channel that hardly occurs in a text would get a factor that another text pays for.
WIDEST = 8.0
SILENT = 1e-10


class Rule(Enum):
    """How factors are chosen. BALANCED: a vector for each kv head of each layer, from keys and queries. INNERQ: one for
    all layers of a width, from keys."""

    BALANCED = "balanced"
    INNERQ = "innerq"


def innerq(rms: F64, strength: float = STRENGTH) -> tuple[F32, bool]:
    """Factors float32 [D] from root mean squares [D], and whether they are worth using: not when all channels are
    within a factor of 1.2 of the mean. Source: the InnerQ of the TurboQuant forks (data/README.md).

    Raises ConfigError for a strength outside (0, 1].
    """
    if not 0 < strength <= 1:
        raise ConfigError(f"strength {strength} is outside 0 (excluded) to 1")
    mean = float(rms.mean())
    live = rms > SILENT
    ratio = np.where(live, mean / np.where(live, rms, 1.0), 1.0)
    factors = np.clip(ratio**strength, 1 / LIMIT, LIMIT).astype(np.float32)
    used = bool(ratio.max() >= BALANCED or ratio.min() <= 1 / BALANCED)
    return factors, used


def balanced(weight: F64, rms: F64) -> F32:
    """Factors float32 [..., D] that minimise `noise`: sqrt(weight / rms), their geometric mean 1 for each vector.

    rms: root mean squares of the channels [..., D]. weight: how much an error of each counts (root mean squares of the
    queries, or lengths of the columns of Wo). Channels that are silent in either get the factor 1.
    """
    live = (weight > SILENT) & (rms > SILENT)
    log = 0.5 * np.log(np.where(live, weight, 1.0) / np.where(live, rms, 1.0))
    log = log - log.sum(axis=-1, keepdims=True, where=live) / np.maximum(live.sum(axis=-1, keepdims=True), 1)
    return np.where(live, np.exp(np.clip(log, -np.log(WIDEST), np.log(WIDEST))), 1.0).astype(np.float32)


def noise(weight: F64, rms: F64, factors: F32) -> F64:
    """Squared error of scores (or outputs) with these factors relative to that without any, [...]."""
    s2, w2, r2 = factors.astype(np.float64) ** 2, weight**2, rms**2
    plain = w2.sum(axis=-1) * r2.sum(axis=-1)
    scaled = (w2 / s2).sum(axis=-1) * (r2 * s2).sum(axis=-1)
    return np.asarray(np.divide(scaled, plain, out=np.ones_like(plain), where=plain > 0))
