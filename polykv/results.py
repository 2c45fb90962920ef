"""Where an operation puts its result: `out`, or a new array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def result(out: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: type = np.float32) -> npt.NDArray[Any]:
    """`out`, or a new array of arbitrary contents. Raises ValueError when `out` has another shape: kernels write by
    address, so one that is too small would be memory of something else.

    >>> result(None, (2, 3)).shape
    (2, 3)
    >>> result(np.zeros(2), (3,))
    Traceback (most recent call last):
    ValueError: out has the shape (2,), the result has (3,)
    """
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape:
        raise ValueError(f"out has the shape {out.shape}, the result has {shape}")
    return out
