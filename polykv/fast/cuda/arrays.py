"""The only crossings between NumPy and the device, and what operations check of their arrays.

    x = asarray(np.ones((2, 64), np.float32))      # to the device
    y = asnumpy(rms_norm(x, w, 1e-6))              # and back

Everything else takes arrays of the current device, C-contiguous, of the type that it says, and raises for any other: a
quiet copy would hide what a step costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.device import cupy


def asarray(x: npt.ArrayLike) -> Any:
    """A C-contiguous copy on the current device."""
    return cupy().asarray(np.ascontiguousarray(x))


def asnumpy(x: Any) -> npt.NDArray[Any]:
    """A copy on the host; waits for the kernels that write x."""
    return np.asarray(cupy().asnumpy(x))


def check(name: str, x: Any, dtype: npt.DTypeLike, *shape: int) -> Any:
    """`x`, an array of the current device of that type and shape (-1: any size).

    Raises TypeError for anything but a device array of that type, ValueError for another shape or order.
    """
    cp = cupy()
    if not isinstance(x, cp.ndarray):
        raise TypeError(f"{name} is a {type(x).__name__}; operations of cuda take CuPy arrays (`arrays.asarray`)")
    if x.dtype != dtype:
        raise TypeError(f"{name} is {x.dtype}, not {np.dtype(dtype)}")
    if x.device.id != cp.cuda.runtime.getDevice():
        raise ValueError(f"{name} is on device {x.device.id}, not on the current one")
    if not x.flags.c_contiguous:
        raise ValueError(f"{name} is not C-contiguous; operations never copy quietly")
    if shape and (
        len(shape) != x.ndim or any(want not in (-1, have) for want, have in zip(shape, x.shape, strict=True))
    ):
        raise ValueError(f"{name} has shape {tuple(x.shape)}, not {shape}")
    return x


def output(out: Any | None, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Any:
    """`out` after a check, or a new array: every operation begins its result this way."""
    if out is None:
        return cupy().empty(shape, dtype)
    return check("out", out, dtype, *shape)
