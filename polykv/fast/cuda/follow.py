"""Kernels that start while the one before them ends: what CuPy's launch has no argument for.

Between two kernels of which one reads what the other writes lie about a microsecond of emptying and filling the device;
a step of a model has some three hundred of them. On compute capability 9.0 and later a kernel may be resident before
that, read what does not depend on the one before (its weights), and wait inside (`follows` in kernels/follow.cuh).
Captured graphs keep that order of starting.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from polykv.fast.cuda.device import cupy, device

# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION of the CUDA driver API.
SERIALIZATION = 6
FIRST = (9, 0)


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("unused", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def works() -> bool:
    """Whether the current device has it."""
    return device().capability >= FIRST


def captured() -> bool:
    """Whether kernels that are started now go into a graph. Elsewhere the host is what a step waits for, and starting
    them in this way takes it longer."""
    return bool(cupy().cuda.get_current_stream().is_capturing())


@cache
def _driver() -> Any:
    """cuLaunchKernelEx."""
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx


def start(
    function: int, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared: int
) -> None:
    """Start a kernel (a CUfunction) on the current stream, before the one before it has ended.

    arguments: NumPy scalars and arrays of the device. Raises RuntimeError with the driver's number of the error.
    """
    values = [_bytes(a) for a in arguments]
    addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    attribute = _Attribute(SERIALIZATION, 0)
    attribute.value[0] = 1
    stream = cupy().cuda.get_current_stream().ptr
    config = _Config(_three(grid), _three(block), shared, stream, ctypes.pointer(attribute), 1)
    error = _driver()(ctypes.byref(config), ctypes.c_void_p(function), addresses, None)
    if error:
        raise RuntimeError(f"the driver refuses to start a kernel: error {error}")


def _three(size: tuple[int, ...]) -> Any:
    return (ctypes.c_uint * 3)(*map(int, size), *[1] * (3 - len(size)))


def _bytes(argument: Any) -> Any:
    """A C object that holds an argument."""
    if isinstance(argument, np.generic):
        return (ctypes.c_char * argument.nbytes).from_buffer_copy(argument.tobytes())
    return ctypes.c_uint64(argument.data.ptr)
