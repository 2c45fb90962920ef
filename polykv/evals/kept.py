"""Cells of one command that are found again when it is run once more, after it was interrupted for example.

A cell belongs to all that its figures depend on: weights, types, factors and codebooks by their contents, what is read,
and the program and processor that computed it. Whatever differs makes another cell.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.evals.arms import Setting
from polykv.evals.campaign import Outcome, Task
from polykv.evals.stamp import made_by
from polykv.evals.store import Store


@dataclass(frozen=True)
class Kept:
    """Cells of one kind, in a store. shared: settings that all of them have. Without a store nothing is kept."""

    kind: str = ""
    shared: dict[str, Any] | None = None
    store: Store | None = None

    @staticmethod
    def of(kind: str, setting: Setting, store: Store | None) -> Kept:
        """Of cells that a setting computes."""
        how = {"backend": setting.ops.name, "activations": setting.activations.name.lower(), "decode": setting.decode}
        return Kept(kind, how | made_by(), store)

    def get(self, **own: Any) -> Outcome | None:
        """What is known of the cell with these settings of its own."""
        return None if self.store is None else self.store.get(self._task(own))

    def add(self, outcome: Outcome, **own: Any) -> None:
        """Keep a cell. Raises ConfigError when it cannot be kept."""
        if self.store is not None:
            self.store.add(self._task(own), outcome)

    def _task(self, own: dict[str, Any]) -> Task:
        return Task(self.kind, {**(self.shared or {}), **own})


NOWHERE = Kept()


def packed(x: npt.NDArray[Any]) -> str:
    """Numbers as text, a third of the size that digits take, and the same to the bit."""
    return base64.b64encode(x.astype("<f8").tobytes()).decode()


def unpacked(text: str) -> npt.NDArray[np.float64]:
    """What `packed` wrote.

    >>> unpacked(packed(np.array([0.1, np.inf])))
    array([0.1, inf])
    """
    return np.frombuffer(base64.b64decode(text), "<f8").astype(np.float64)
