"""Perplexity and divergence of K/V pairs over windows of a text.

Every window is read from an empty cache, by all pairs side by side, a few rows at a time: logits of a large vocabulary
are never held for more than ROWS rows of two pairs. Every token sees its own key and value compressed, so nothing but
the types differs between the pairs. `decode` reads the scored half token by token, with the kernels that decoding uses:
figures of a prefill alone cannot show a fault there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config
from polykv.evals.arms import Arm, Setting, cache_identity
from polykv.evals.divergence import F64, Positions, nll, positions
from polykv.evals.kept import NOWHERE, Kept, packed, unpacked
from polykv.evals.windows import Window
from polykv.measure.quality import bytes_per_token, log_softmax
from polykv.memory import f16_nbytes
from polykv.model.runner import Logits, Runner
from polykv.types import F32

# Rows of logits that are held at a time: 32 MB each for a vocabulary of 262,144; and rows of a step without logits.
ROWS, CHUNK = 32, 512
# What a measured window is kept as: sizes, and figures of every position.
_SIZES = ("bytes_per_token", "bits", "held", "f16_bytes")
_FIGURES = {"nll": np.float64, "base_nll": np.float64, "kl": np.float64, "same": np.bool_}


@dataclass(frozen=True, eq=False)
class Measured:
    """An arm over one window, or over several.

    bytes_per_token: codes of K and V of all layers; bits: the same per value. held: bytes of everything that the cache
    held at the end of the (last) window, exact cells and unfilled blocks included; f16_bytes: of a float16 cache of
    that length.
    """

    positions: Positions
    bytes_per_token: float
    bits: float
    held: int
    f16_bytes: int

    @property
    def bits_held(self) -> float:
        """`held` per value."""
        return 16 * self.held / self.f16_bytes

    @staticmethod
    def join(windows: list[Measured]) -> Measured:
        """One window after the other."""
        return replace(windows[-1], positions=Positions.join([w.positions for w in windows]))

    def to_json(self) -> dict[str, Any]:
        """JSON-serialisable, and the same again to the bit with `from_json`."""
        sizes = {name: getattr(self, name) for name in _SIZES}
        return sizes | {name: packed(getattr(self.positions, name)) for name in _FIGURES}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Measured:
        """What `to_json` wrote."""
        figures: dict[str, Any] = {name: unpacked(value[name]).astype(kind) for name, kind in _FIGURES.items()}
        return Measured(Positions(**figures), **{name: value[name] for name in _SIZES})


class _Side:
    """One arm's cache and runner; the cache is used again for every window."""

    def __init__(self, arm: Arm, setting: Setting, tokens: int) -> None:
        model, config = setting.model, cache_config(setting.ops, arm.tiers)
        self.pool = KVPool(setting.ops, model.config, config, fingerprint=model.fingerprint, max_tokens=tokens)
        self.pool.equalize(arm.calibration)
        self._runner = Runner(setting.ops, model, self.pool, setting.activations)
        self._sequence = Sequence(self.pool)
        self.identity = cache_identity(setting, arm)

    def restart(self) -> None:
        """Begin a new window."""
        self._sequence.free()
        self._sequence = Sequence(self.pool)

    def read(self, ids: tuple[int, ...]) -> None:
        """Tokens whose predictions are not asked for."""
        for at in range(0, len(ids), CHUNK):
            self._runner.step([(self._sequence, list(ids[at : at + CHUNK]))], Logits.NONE)

    def predict(self, ids: tuple[int, ...], rows: int) -> F32:
        """Log-probabilities [T, V] after each of the tokens, `rows` of which are read in a step."""
        steps = [list(ids[at : at + rows]) for at in range(0, len(ids), rows)]
        return log_softmax(np.concatenate([self._runner.step([(self._sequence, s)], Logits.ALL) for s in steps]))


def compare(
    windows: list[Window],
    base: Arm,
    arms: list[Arm],
    setting: Setting,
    on_progress: Callable[[int, int], None] | None = None,
    kept: Kept = NOWHERE,
) -> dict[str, Measured]:
    """Figures of every arm, by name, against `base`.

    on_progress(done, total) counts tokens of all arms. An arm equal to the base is run like the others: equal figures
    show that the run repeats. kept: a window of an arm that is there is not read again.
    """
    longest = max(len(w.ids) for w in windows)
    sides = {arm.name: _Side(arm, setting, longest) for arm in arms}
    reference = _Side(base, setting, longest)
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    done, total = 0, sum(len(w.ids) - 1 for w in windows) * (1 + len(sides))

    def tell(tokens: int) -> None:
        nonlocal done
        done += tokens
        if on_progress:
            on_progress(done, total)

    for window in windows:
        own = {
            name: {"kv": name, "cache": side.identity, "base": reference.identity, "window": window.digest}
            for name, side in sides.items()
        }
        known = {name: outcome for name in sides if (outcome := kept.get(**own[name])) is not None}
        missing = {name: side for name, side in sides.items() if name not in known}
        tell((len(window.ids) - 1) * (len(known) + (not missing)))
        new = _window(window, reference, missing, setting, tell) if missing else {}
        for name in sides:
            if name in new:
                kept.add(new[name].to_json(), **own[name])
            found[name].append(new[name] if name in new else Measured.from_json(known[name]))
    return {name: Measured.join(parts) for name, parts in found.items()}


def _window(
    window: Window, reference: _Side, sides: dict[str, _Side], setting: Setting, tell: Callable[[int], None]
) -> dict[str, Measured]:
    """One window, read by all sides."""
    for side in (reference, *sides.values()):
        side.restart()
        side.read(window.ids[: window.first])
        tell(window.first)
    found: dict[str, list[Positions]] = {name: [] for name in sides}
    for part, following in _scored(window):
        rows = 1 if setting.decode else len(part)
        wanted = reference.predict(part, rows)
        weights = np.exp(wanted)
        for name, side in sides.items():
            found[name].append(positions(wanted, weights, side.predict(part, rows), following))
        tell(len(part) * (1 + len(sides)))
    return {name: _measured(side, Positions.join(found[name]), len(window.ids)) for name, side in sides.items()}


def _measured(side: _Side, found: Positions, length: int) -> Measured:
    size = bytes_per_token(side.pool)
    values = sum(2 * layer.n_kv * layer.head_dim for layer in side.pool.model.layers)
    # The last token of a window is predicted, not read.
    return Measured(found, size, 8 * size / values, side.pool.used_nbytes, f16_nbytes(side.pool, length - 1))


def score(
    windows: list[Window],
    arm: Arm,
    setting: Setting,
    on_progress: Callable[[int, int], None] | None = None,
    kept: Kept = NOWHERE,
) -> F64:
    """-log p of the following token at all scored positions, with one arm. kept: as for `compare`."""
    side = _Side(arm, setting, max(len(w.ids) for w in windows))
    found: list[F64] = []
    done, total = 0, sum(len(w.ids) for w in windows)
    for window in windows:
        own = {"kv": arm.name, "cache": side.identity, "window": window.digest}
        known = kept.get(**own)
        if known is None:
            known = {"nll": packed(_nll(window, side, setting))}
            kept.add(known, **own)
        found.append(unpacked(known["nll"]))
        done += len(window.ids)
        if on_progress:
            on_progress(done, total)
    return np.concatenate(found)


def _nll(window: Window, side: _Side, setting: Setting) -> F64:
    side.restart()
    side.read(window.ids[: window.first])
    scored = _scored(window)
    return np.concatenate([nll(side.predict(p, 1 if setting.decode else len(p)), following) for p, following in scored])


def _scored(window: Window) -> list[tuple[tuple[int, ...], npt.NDArray[np.int64]]]:
    """The scored positions in pieces: tokens that are read, and those that follow them."""
    last = len(window.ids) - 1
    return [
        (window.ids[at : min(at + ROWS, last)], np.array(window.ids[at + 1 : min(at + ROWS, last) + 1], np.int64))
        for at in range(window.first, last, ROWS)
    ]
