"""Training a codebook for a trellis type: chosen on one corpus, accepted only if it wins on another.

A corpus is vectors of one head_dim: drawn from N(0, 1), which is what rotated vectors look like, or K and V of a model
(`polykv.measure.corpus`). Every seed begins with a codebook of its own and improves it on the first corpus
(`polykv.ref.codebooks`); the one with the least error there is the candidate. It is accepted if, on the second corpus,
which nothing was fitted to, every seed has less error than the type's own codebook and the candidate's gain is beyond
chance: more than SIGMAS standard errors of the mean over groups. Otherwise there is no robust gain.

Error: squared, relative to the squared length of a group, norms as stored. It is not the effect on a model; measure
that with a cache of either codebook (`polykv.load(codebooks=[file])`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polykv.errors import ConfigError
from polykv.fast.cpu.trellis import viterbi
from polykv.ref.codebooks import improved, relative_errors, stratified
from polykv.ref.rotation import normalised, pairwise
from polykv.types import F32, Codec, Family
from polykv.whole_file import whole_file

# Rounds end early when one of them lowers the error by less than this share.
SETTLED = 1e-5
SIGMAS = 3.0
FEWEST_SEEDS = 3
# update(done, total, text)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Trial:
    """What one seed came to: rounds, and relative errors on both corpora."""

    seed: int
    rounds: int
    selection: float
    held_out: float
    codebook: F32 = field(repr=False, compare=False)


@dataclass(frozen=True)
class Training:
    """The outcome for one type. selection, held_out: relative errors of the type's own codebook.

    gain, deviation: how much less error the candidate has on the held-out corpus, as a share, and the standard error of
    that.
    """

    codec: Codec
    trials: tuple[Trial, ...]
    selection: float
    held_out: float
    gain: float
    deviation: float

    @property
    def candidate(self) -> Trial:
        """The trial with the least error on the selection corpus."""
        return min(self.trials, key=lambda t: t.selection)

    @property
    def accepted(self) -> bool:
        """Whether the gain is robust."""
        return all(t.held_out < self.held_out for t in self.trials) and self.gain > SIGMAS * self.deviation

    def as_dict(self) -> dict[str, Any]:
        """Everything but the codebooks."""
        trials = [{f: getattr(t, f) for f in ("seed", "rounds", "selection", "held_out")} for t in self.trials]
        own = {"table_id": self.codec.table_id, "selection": self.selection, "held_out": self.held_out}
        return {
            "type": self.codec.name,
            "own": own,
            "trials": trials,
            "candidate": self.candidate.seed,
            "gain": self.gain,
            "standard_error": self.deviation,
            "accepted": self.accepted,
            "sha256": checksum(self.candidate.codebook),
        }


def train(
    codec: Codec,
    selection: F32,
    held_out: F32,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int = 60,
    update: Progress = lambda done, total, text: None,
) -> Training:
    """Train codebooks for `codec` on vectors selection [n, D] and compare them with its own on held_out [m, D].

    rounds: the most that one seed takes. Raises ConfigError for a type without a trellis, fewer than three different
    seeds, and corpora without a usable vector.
    """
    _check(codec, seeds, rounds)
    a, b = _groups(codec, selection, "selection"), _groups(codec, held_out, "held-out")
    own, bits = np.array(codec.centroids, np.float32), codec.bits
    before = relative_errors(own, b, bits, viterbi)
    trials, after = [], {}
    for i, seed in enumerate(seeds):
        book, done = _fit(codec, a, seed, rounds, partial(_tick, update, i * rounds, len(seeds) * rounds))
        after[seed] = relative_errors(book, b, bits, viterbi)
        error = float(relative_errors(book, a, bits, viterbi).mean())
        trials.append(Trial(seed, done, error, float(after[seed].mean()), book))
    best = min(trials, key=lambda t: t.selection)
    less = (before - after[best.seed]) / before.mean()
    deviation = float(less.std(ddof=1) / np.sqrt(len(less))) if len(less) > 1 else float("inf")
    mine = float(relative_errors(own, a, bits, viterbi).mean())
    return Training(codec, tuple(trials), mine, float(before.mean()), float(less.mean()), deviation)


def checksum(codebook: F32) -> str:
    """sha256 of the file that holds a codebook."""
    return hashlib.sha256(codebook.astype("<f4").tobytes()).hexdigest()


def save(training: Training, path: str | Path, corpora: dict[str, Any]) -> Path:
    """Write the accepted codebook: raw little-endian float32, one per state, and beside it `<path>.json`, how it came
    about (corpora: words for the two). Returns the path of the latter.

    Raises ConfigError when there was no robust gain, FormatError when a file cannot be written.
    """
    if not training.accepted:
        raise ConfigError(f"no robust gain over the codebook of {training.codec.name}: nothing to save")
    path = Path(path)
    story = path.with_name(f"{path.name}.json")
    with whole_file(path, private=False) as f:
        f.write(training.candidate.codebook.astype("<f4").tobytes())
    with whole_file(story, private=False) as f:
        f.write(f"{json.dumps(training.as_dict() | corpora, indent=1)}\n".encode())
    return story


def _tick(update: Progress, before: int, total: int, done: int) -> None:
    update(before + done, total, "training")


def _check(codec: Codec, seeds: Sequence[int], rounds: int) -> None:
    if codec.family != Family.TRELLIS:
        raise ConfigError(f"{codec.name} has no codebook of states to train")
    if len(set(seeds)) != len(seeds) or len(seeds) < FEWEST_SEEDS:
        raise ConfigError(f"a codebook needs at least {FEWEST_SEEDS} different seeds: one may win by luck")
    if rounds < 1:
        raise ConfigError("training needs at least one round")


def _groups(codec: Codec, vectors: F32, what: str) -> F32:
    """Rotated groups [n, g] of unit norm in the units of the tables; zero vectors are left out."""
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise ConfigError(f"the {what} corpus must be finite vectors [n, head_dim]")
    d = vectors.shape[1]
    g = codec.group(d)
    y, length = normalised(codec, np.pad(vectors, [(0, 0), (0, codec.resident_dim(d) - d)]), g, pairwise)
    groups = np.ascontiguousarray(y.reshape(-1, g)[length.reshape(-1) > 0])
    if not len(groups):
        raise ConfigError(f"the {what} corpus has no vector other than zero")
    return groups


def _fit(codec: Codec, y: F32, seed: int, rounds: int, tick: Callable[[int], None]) -> tuple[F32, int]:
    """A codebook for y, and the rounds it took."""
    book = stratified(codec.bits, 1 << codec.prefix_bits, np.random.default_rng(seed))
    last = float("inf")
    for r in range(rounds):
        book, error = improved(book, y, codec.bits, viterbi)
        tick(r + 1)
        if last - error < SETTLED * last:
            return book, r + 1
        last = error
    return book, rounds
