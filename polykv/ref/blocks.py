"""Vectors as runs of blocks of equal length, and back."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)


def split(a: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    """[..., n size] -> [..., n, size]."""
    return a.reshape(*a.shape[:-1], a.shape[-1] // size, size)


def flat(a: npt.NDArray[T]) -> npt.NDArray[T]:
    """[..., n, size] -> [..., n size]."""
    return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1])
