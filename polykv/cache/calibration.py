"""What a calibration is: factors for the channels of K (and, if wanted, of V), and which layers they belong to.

A channel whose keys are large takes most of a rotated vector's error budget, so the others suffer. Multiplying channel
c by a factor before a key is stored, and the query's channel by its inverse, changes no score but moves the rounding
error from some channels to others ("InnerQ"). The rules that choose factors are in `polykv.cache.equalize`, files in
`polykv.cache.calibration_file`, measured results in docs/CALIBRATION.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from polykv.config import ModelConfig
from polykv.errors import ConfigError
from polykv.types import F32, Equalizer

# `Slot.width` and `Slot.layer` that fit anything.
ANY = 0
EVERY_LAYER = -1
# The identity of a cache without a calibration.
NONE = "none"


@dataclass(frozen=True, eq=False)
class Slot:
    """Inverse factors float32 [heads, head_dim]: one row for each kv head, or a single one for all.

    width: values that a layer stores for a token, n_kv * head_dim; the slot is for layers of this width, with ANY for
    all of its head_dim. layer: for this layer only. Inverse, because that is what files hold; a factor is 1 / inverse,
    in float32.
    """

    inverse: F32
    width: int = ANY
    layer: int = EVERY_LAYER

    @property
    def heads(self) -> int:
        return int(self.inverse.shape[0])

    @property
    def head_dim(self) -> int:
        return int(self.inverse.shape[1])

    @property
    def identity(self) -> bool:
        """Whether it changes nothing."""
        return bool((self.inverse == 1).all())

    def fits(self, layer: int, n_kv: int, head_dim: int) -> bool:
        """Whether it is meant for this layer."""
        shape = self.width in (ANY, n_kv * head_dim) and self.heads in (1, n_kv) and self.head_dim == head_dim
        return shape and self.layer in (EVERY_LAYER, layer)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Slots of K, and of V when V is scaled too. At most one slot of a side fits a layer; layers that none fits are
    stored as they are."""

    k: tuple[Slot, ...] = ()
    v: tuple[Slot, ...] = ()

    def identity(self) -> str:
        """A short text that is equal exactly when the factors are; it belongs to a cache's identity.

        >>> Calibration().identity()
        'none'
        """
        sides = [f"{side} {_digest(slots)}" for side, slots in (("K", self.k), ("V", self.v)) if slots]
        return ", ".join(sides) or NONE

    def equalizers(self, model: ModelConfig) -> tuple[Equalizer, ...]:
        """What every layer of the model multiplies with. Raises ConfigError when a slot fits no layer, or a layer more
        than one: the file was made for another model."""
        used: set[int] = set()
        found = []
        for i, layer in enumerate(model.layers):
            sides = [_only(slots, i, layer.n_kv, layer.head_dim, used) for slots in (self.k, self.v)]
            (k, q), (v, out) = (_factors(slot, layer.n_kv, layer.n_heads) for slot in sides)
            found.append(Equalizer(k, q, v, out))
        for slot in (*self.k, *self.v):
            if id(slot) not in used:
                raise ConfigError(
                    f"calibration: {describe(slot)} fits no layer of {model.name}: made for another model"
                )
        return tuple(found)


def _digest(slots: tuple[Slot, ...]) -> str:
    h = hashlib.blake2b(digest_size=8)
    for s in sorted(slots, key=lambda s: (s.layer, s.width, s.head_dim)):
        h.update(np.array([s.layer, s.width, *s.inverse.shape], "<i4").tobytes() + s.inverse.astype("<f4").tobytes())
    return h.hexdigest()


def _only(slots: tuple[Slot, ...], layer: int, n_kv: int, head_dim: int, used: set[int]) -> Slot | None:
    fitting = [s for s in slots if s.fits(layer, n_kv, head_dim)]
    if len(fitting) > 1:
        raise ConfigError(f"calibration: {len(fitting)} slots fit layer {layer}: {', '.join(map(describe, fitting))}")
    used.update(map(id, fitting))
    return fitting[0] if fitting else None


def _factors(slot: Slot | None, n_kv: int, n_heads: int) -> tuple[F32 | None, F32 | None]:
    """Factors of what is stored, [n_kv, D], and inverse ones of the query heads that read it, [n_heads, D]; None when
    nothing changes, so that no kernel multiplies by 1."""
    if slot is None or slot.identity:
        return None, None
    inverse = np.ascontiguousarray(np.broadcast_to(slot.inverse, (n_kv, slot.head_dim)), np.float32)
    return np.float32(1) / inverse, np.repeat(inverse, n_heads // n_kv, axis=0)


def describe(slot: Slot) -> str:
    """A slot in words.

    >>> describe(Slot(np.array([[0.5, 2]], np.float32), 6))
    'rows of 6 values, head_dim 2, factors 0.5 to 2'
    """
    layer = f"layer {slot.layer}, " if slot.layer != EVERY_LAYER else ""
    rows = f"rows of {slot.width} values" if slot.width != ANY else "any row"
    factors = 1 / slot.inverse.astype(np.float64)
    return f"{layer}{rows}, head_dim {slot.head_dim}, factors {factors.min():.3g} to {factors.max():.3g}"
