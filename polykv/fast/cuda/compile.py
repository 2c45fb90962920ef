"""The only way to a compiled kernel on a device.

    norm = kernel("norm.cu", "rms_norm", NORM_THREADS=256)
    launch(norm, (rows,), (256,), (x, weight, y, cols, 1e-6))

A file is specialised by defines, never by copies of it: templates stay inside, and the one `extern "C"` entry that is
asked for is instantiated from them. What NVRTC made is kept on disk for later processes (images.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from polykv.fast.cuda import follow
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.images import image
from polykv.fast.cuda.source import Define, source

# Bytes of shared memory that a block may have without asking for more.
SHARED_LIMIT = 48 * 1024
# The driver's number of the attribute of a function that allows more.
MAX_DYNAMIC_SHARED = 8


@dataclass(eq=False)
class Made:
    """A compiled kernel. follows: in a graph it may start before the one before it has ended."""

    function: Any
    follows: bool
    shared: int = SHARED_LIMIT


def kernel(file: str, entry: str, **defines: Define) -> Made:
    """The kernel that is function `entry` of kernels/`file`, compiled for the current device, once.

    Raises UnsupportedError when there is no usable device, or when its compiler refuses the source.
    """
    return _compiled(file, entry, tuple(sorted(defines.items())), cupy().cuda.runtime.getDevice())


def kernel_of(arch: str, file: str, entry: str, **defines: Define) -> Made:
    """The same for one architecture alone, for example sm_90a: with instructions that no later one has.

    Raises UnsupportedError as `kernel` does.
    """
    return _compiled(file, entry, tuple(sorted(defines.items())), cupy().cuda.runtime.getDevice(), arch)


@cache
def _compiled(file: str, entry: str, defines: tuple[tuple[str, Define], ...], device: int, arch: str = "") -> Made:
    module = cupy().cuda.function.Module()
    module.load(image(file, dict(defines), arch))
    return Made(module.get_function(entry), '"follow.cuh"' in source(file) and follow.works())


def launch(
    made: Made, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared: int = 0
) -> None:
    """Start a kernel on the current stream: shared is the bytes of dynamic shared memory.

    In arguments an int is C's `int` and a float is C's `float` (CuPy would make them 64 bits wide); other types are
    written as NumPy scalars; None is a null pointer. Nothing is started for an empty grid.
    """
    if 0 in grid:
        return
    if shared > made.shared:
        cupy().cuda.driver.funcSetAttribute(made.function.ptr, MAX_DYNAMIC_SHARED, shared)
        made.shared = shared
    values = tuple(map(_argument, arguments))
    if made.follows and follow.captured():
        follow.start(made.function.ptr, grid, block, values, shared)
    else:
        made.function(grid, block, values, shared)


def _argument(value: Any) -> Any:
    if value is None:
        return np.uint64(0)
    # NumPy's float64 is a float too: it stays what it is.
    if type(value) is int:
        return np.int32(value)
    return np.float32(value) if type(value) is float else value
