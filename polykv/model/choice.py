"""How a step ends: with tokens for its rows, whose choice is begun on the backend before the host waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from polykv.errors import NotFiniteError
from polykv.model.transformer import Transformer
from polykv.sampling import Draws
from polykv.types import F32, I32, Greedy

T_co = TypeVar("T_co", covariant=True)


class Choice(Protocol[T_co]):
    """Tokens out of hidden rows. Equal ones give the same tokens for the same rows."""

    def begin(self, h: F32) -> list[npt.NDArray[Any]]:
        """Begin the choice for h [R, E]: arrays of the backend, ids int32 [R] first."""
        ...

    def end(self, *found: npt.NDArray[Any]) -> T_co:
        """The result, of the same arrays on the host. Raises NotFiniteError for logits that are not."""
        ...

    def following(self) -> Choice[Any] | None:
        """The choice for the next step of the same sequences, before these tokens are known; None where it depends on
        them."""
        ...


@dataclass(frozen=True)
class MostLikely:
    """Greedy tokens (`Ops.greedy`). room: see there. screen: use that of the head, if any."""

    transformer: Transformer
    room: F32 | None = field(compare=False)
    screen: bool

    def begin(self, h: F32) -> list[npt.NDArray[Any]]:
        """Ids, their logits, and how many of them were computed."""
        found = self.transformer.greedy(h, self.room, screen=self.screen)
        return [found.ids, found.logits, found.exact]

    def end(self, *found: npt.NDArray[Any]) -> Greedy:
        """All three."""
        ids, logits, exact = found
        refuse(np.isnan(logits))
        return Greedy(ids, logits, exact)

    def following(self) -> MostLikely:
        """The same."""
        return self


@dataclass(frozen=True)
class Drawn:
    """Tokens that are drawn (`polykv.sampling`). logits: those of the last `begin`."""

    transformer: Transformer
    draws: Draws
    logits: list[F32] = field(default_factory=list, compare=False)

    def begin(self, h: F32) -> list[npt.NDArray[Any]]:
        """Ids, and the sum of all logits."""
        self.logits[:] = [self.transformer.logits(h)]
        return [self.draws.draw(self.transformer.ops, self.logits[0]), total(self.logits[0])]

    def end(self, *found: npt.NDArray[Any]) -> I32:
        """The ids."""
        ids, sums = found
        check_finite(self.transformer.ops.fetch, self.logits.pop(), sums)
        return ids

    def following(self) -> Drawn | None:
        """With the random numbers of the next tokens."""
        draws = self.draws.following()
        return None if draws is None else Drawn(self.transformer, draws)


def total(logits: F32) -> npt.NDArray[Any]:
    """The sum of all logits, [1]: NaN and infinity show in it."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: npt.NDArray[Any] = logits.reshape(1, -1).sum(axis=1)
    return found


def check_finite(fetch: Callable[[F32], F32], logits: F32, sums: npt.NDArray[Any], what: str = "logits") -> None:
    """Refuse NaN and infinity: sampling from them would give a token that means nothing. sums: their `total`."""
    # Finite values may overflow it, so only then is every one looked at.
    if not np.isfinite(sums).all():
        refuse(np.logical_not(np.isfinite(fetch(logits)).all(axis=1)), what)


def refuse(broken: npt.NDArray[np.bool_], what: str = "logits") -> None:
    """Raise NotFiniteError when any row has a logit that is not finite. what: is not finite."""
    if broken.any():
        raise NotFiniteError(
            f"the model gave {what} that are not finite ({int(broken.sum())} of {len(broken)} rows): "
            "its file holds NaN or infinite weights (`polykv inspect --check-tensors FILE` names them), or a value "
            "overflowed; no token was chosen"
        )
