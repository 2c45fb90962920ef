"""What `ref` and `cpu` have beside their operations, both in the same way (`polykv.ops_facts`): arrays are NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy.typing as npt

from polykv.types import Activations, Codec, ModelWeights, Stack


def unusable() -> str | None:
    """None: it runs wherever Python does."""
    return None


def preferred_block() -> int:
    """Cells of a block: few, so that agents share better (`polykv.config.CacheConfig`)."""
    return 8


def supports_stages() -> str | None:
    """None: cells may be exact first and coded in whole units later."""
    return None


def fetch(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as it is: all are NumPy's."""
    return x


def begin_fetch(x: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
    """The array as it is, when it is asked for."""
    return lambda: x


def wait() -> None:
    """Nothing: operations return when they are done."""


def memory() -> tuple[int, int] | None:
    """None: arrays are in the host's memory."""
    return None


def footprint(
    weights: ModelWeights,
    pairs: Sequence[tuple[Codec, Codec]],
    *,
    rows: int,
    logits: int,
    cells: int,
    activations: Activations,
) -> dict[str, int]:
    """Nothing: there is no device."""
    return {}


def settle(weights: ModelWeights, steps: int) -> None:
    """Nothing: weights are read where the file is mapped."""


def held(weights: ModelWeights, stack: Stack) -> dict[str, int]:
    """Nothing: there is no device."""
    return {}


def runs_ahead() -> bool:
    """No: operations return when they are done."""
    return False


def compiled() -> dict[str, float]:
    """Nothing: `ref` has nothing to compile, and of `cpu` numba tells those who listen (`compiling`)."""
    return {}


def compiling(begins: Callable[[], None], ends: Callable[[], None]) -> AbstractContextManager[None]:
    """Nothing is compiled."""
    return nullcontext()
