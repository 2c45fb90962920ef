"""The only way to a compiled kernel on a device.

    norm = kernel("norm.cu", "rms_norm", NORM_THREADS=256)
    launch(norm, (rows,), (256,), (x, weight, y, cols, 1e-6))

A file is specialised by defines, never by copies of it: templates stay inside, and the one `extern "C"` entry that is
asked for is instantiated from them. CuPy keeps what NVRTC made on disk, by text and options, for later processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from polykv.errors import UnsupportedError
from polykv.fast.cuda import follow
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.exact import ExactKernel
from polykv.fast.cuda.source import Define, source

# No fast math. No contraction either: where a product and a sum are to be rounded once the source says fmaf(), so its
# results are those of its text, on every architecture and for every compiler (tests run device functions on the CPU).
OPTIONS = ("--std=c++17", "--fmad=false")
# What CuPy adds to any options: denormal float32 numbers are taken, and given, as zero. Nothing may rest on them.
CUPY_OPTIONS = ("-ftz=true",)

# Bytes of shared memory that a block may have without asking for more.
SHARED_LIMIT = 48 * 1024


@dataclass(eq=False)
class Made:
    """A compiled kernel. follows: in a graph it may start before the one before it has ended."""

    raw: Any
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
    cp = cupy()
    text = source(file, dict(defines))
    try:
        if arch:
            made = ExactKernel(text, entry, arch, (*OPTIONS, *CUPY_OPTIONS))
        else:
            made = cp.RawKernel(text, entry, options=OPTIONS)
            made.compile()
    except UnsupportedError as e:
        raise UnsupportedError(f"{file} does not compile for {arch}: {first_error(str(e))}") from e
    except cp.cuda.compiler.CompileException as e:
        raise UnsupportedError(f"{file} does not compile on this machine: {first_error(str(e))}") from e
    return Made(made, '"follow.cuh"' in text and follow.works())


def first_error(log: str) -> str:
    """The first error of a compiler's log, or its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["no message"]
    return next((line for line in lines if re.search(r"\berror\b", line)), lines[0])


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
        made.raw.max_dynamic_shared_size_bytes = made.shared = shared
    values = tuple(map(_argument, arguments))
    if made.follows and follow.captured():
        follow.start(made.raw.kernel.ptr, grid, block, values, shared)
    else:
        made.raw(grid, block, values, shared_mem=shared)


def _argument(value: Any) -> Any:
    if value is None:
        return np.uint64(0)
    # NumPy's float64 is a float too: it stays what it is.
    if type(value) is int:
        return np.int32(value)
    return np.float32(value) if type(value) is float else value
