"""A module that stands for CuPy: arrays are NumPy's, kernels run in the emulator, cuBLAS is a NumPy product.

So the launchers of the backend, and the kernels under them, run on machines without a GPU, as they are.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import finalize

import emulator
import numpy as np
import pytest

from polykv.fast import kernel_store
from polykv.fast.cuda import compile as compiling
from polykv.fast.cuda import device, images


class Memory:
    """Where an array lies. ptr: its address."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def copy_from_host_async(self, address: int, size: int, stream: Any) -> None:
        ctypes.memmove(self.ptr, address, size)

    def copy_to_host_async(self, address: int, size: int, stream: Any) -> None:
        ctypes.memmove(address, self.ptr, size)

    def copy_from_device_async(self, memory: Memory, size: int, stream: Any) -> None:
        ctypes.memmove(self.ptr, memory.ptr, size)

    def memset_async(self, value: int, size: int, stream: Any) -> None:
        ctypes.memset(self.ptr, value, size)


class Pinned(np.ndarray):
    """Bytes of the host, at `ptr`."""

    @property
    def ptr(self) -> int:
        return self.ctypes.data


STREAM = SimpleNamespace(is_capturing=lambda: False, synchronize=lambda: None)
EVENT = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)


class Piece:
    """Memory straight from the driver, and how much of it the device has, all pieces together."""

    total, used = 1 << 30, 0

    def __init__(self, size: int) -> None:
        if size > Piece.total - Piece.used:
            raise MemoryError
        self.room, self.size = empty(size, np.uint8), size
        Piece.used += size
        finalize(self, Piece._freed, size)

    @staticmethod
    def _freed(size: int) -> None:
        Piece.used -= size


class Array(np.ndarray):
    """A NumPy array that passes for one of the device. memptr: the piece of memory that it is all of."""

    def __new__(cls, shape: Any, dtype: Any, memptr: Any) -> Any:
        y = memptr.room[: int(np.prod(shape))].view(dtype).reshape(shape)
        y.piece = memptr
        return y

    def __array_finalize__(self, of: Any) -> None:
        # As long as any view of it lives, so does the piece.
        self.piece = getattr(of, "piece", None)

    @property
    def device(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(id=0)

    @property
    def data(self) -> Any:  # type: ignore[override]
        return Memory(self.ctypes.data)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions give new device arrays, as they do for CuPy's."""
        y = super().__array_function__(func, types, args, kwargs)
        return asarray(np.asarray(y)) if isinstance(y, np.ndarray) else y


def empty(shape: int | tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Memory that begins at a multiple of 256 bytes, as on a device, and is full of NaN."""
    shape = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.full(size + 256, 0xFF, np.uint8)
    start = -room.ctypes.data % 256
    return room[start : start + size].view(dtype).reshape(shape).view(Array)


def asarray(x: Any, dtype: Any = None) -> Any:
    """A copy, unless it is a device array of that type already."""
    if isinstance(x, Array) and dtype in (None, x.dtype):
        return x
    host = np.array(x, dtype, subok=False)
    y = empty(host.shape, host.dtype)
    y[...] = host
    return y


def full(shape: Any, value: Any, dtype: Any) -> Any:
    y = empty(shape, dtype)
    y[...] = value
    return y


def view(address: int, rows: int, cols: int, pitch: int, dtype: Any) -> np.ndarray:
    """Memory as a matrix of rows `pitch` values apart."""
    size = ((rows - 1) * pitch + cols) * np.dtype(dtype).itemsize
    flat = np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (pitch * flat.itemsize, flat.itemsize), writeable=True)


def gemm_ex(
    handle: int,
    *arguments: Any,
) -> None:
    """C = A^T B as cuBLAS counts: rows of A and B in memory are its columns."""
    ta, tb, m, n, k, one, a, a_type, lda, b, b_type, ldb, zero, c, c_type, ldc, compute, _ = arguments
    assert (ta, tb, a_type, b_type, c_type, compute) == (1, 0, 2, 2, 0, 68)
    multiply(m, n, k, (a, lda), (b, ldb), (c, ldc), np.float16, (one, zero))


def sgemm(handle: int, *arguments: Any) -> None:
    """The same in float32."""
    ta, tb, m, n, k, one, a, lda, b, ldb, zero, c, ldc = arguments
    assert (ta, tb) == (1, 0)
    multiply(m, n, k, (a, lda), (b, ldb), (c, ldc), np.float32, (one, zero))


def multiply(m: int, n: int, k: int, a: Any, b: Any, c: Any, dtype: Any, numbers: tuple[int, int]) -> None:
    """c [n, m] = b [n, k] @ a [m, k]^T."""
    assert [view(at, 1, 1, 1, np.float32)[0, 0] for at in numbers] == [1, 0]
    left, right = view(b[0], n, k, b[1], dtype), view(a[0], m, k, a[1], dtype)
    view(c[0], n, m, c[1], np.float32)[...] = left.astype(np.float64) @ right.astype(np.float64).T


def module(folder: Path) -> ModuleType:
    """The module; compiled kernels go to the folder."""

    class Module:
        """What NVRTC gives is the text, which g++ compiles when a function of it is asked for."""

        def load(self, image: bytes) -> None:
            self.text = image.decode()

        def get_function(self, entry: str) -> emulator.Kernel:
            return emulator.compiled(self.text, entry, folder)

    nvrtc = SimpleNamespace(
        getVersion=lambda: (13, 0),
        getSupportedArchs=lambda: (80, 90, 100),
        NVRTCError=RuntimeError,
        createProgram=lambda text, name, headers, names: text,
        compileProgram=lambda text, options: None,
        getCUBIN=lambda text: text.encode(),
        getProgramLog=lambda text: "",
        destroyProgram=lambda text: None,
    )

    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceCount=lambda: 1,
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: 13000,
        CUDARuntimeError=RuntimeError,
        memGetInfo=lambda: (Piece.total - Piece.used, Piece.total),
        getDeviceProperties=lambda i: {
            "name": b"host",
            "major": 9,
            "minor": 0,
            "totalGlobalMem": Piece.total,
            "multiProcessorCount": 1,
            "sharedMemPerMultiprocessor": 228 << 10,
        },
    )
    cp: Any = ModuleType("cupy")
    cp.ndarray = Array
    cp.empty, cp.asarray, cp.full, cp.concatenate = empty, asarray, full, np.concatenate
    cp.zeros = lambda shape, dtype: full(shape, 0, dtype)
    cp.ascontiguousarray = lambda x: x if x.flags.c_contiguous else asarray(np.ascontiguousarray(x))
    pool = SimpleNamespace(malloc=Piece, free_all_blocks=lambda: None, free_bytes=lambda: 0, total_bytes=lambda: 0)
    cp.get_default_memory_pool = lambda: pool
    cp.asnumpy = lambda x: np.array(x)
    cp.cuda = SimpleNamespace(
        runtime=runtime,
        nvrtc=nvrtc,
        function=SimpleNamespace(Module=Module),
        driver=SimpleNamespace(funcSetAttribute=lambda function, attribute, value: None),
        cublas=SimpleNamespace(gemmEx=gemm_ex, sgemm=sgemm),
        device=SimpleNamespace(get_cublas_handle=lambda: 0),
        Memory=Piece,
        MemoryPointer=lambda piece, at: piece,
        alloc_pinned_memory=lambda size: np.zeros(size, np.uint8).view(Pinned),
        get_current_stream=lambda: STREAM,
        Event=lambda disable_timing: EVENT,
    )
    return cp


@contextmanager
def installed(folder: Path, *tables: Callable[..., Any]) -> Iterator[None]:
    """The module in the place of CuPy; tables: cached functions that keep arrays of the device."""
    caches: Any = (device.cupy, device.device, compiling._compiled, *tables)
    patch = pytest.MonkeyPatch()
    patch.setitem(sys.modules, "cupy", module(folder))
    patch.setattr(images, "source", emulator.pasted)
    # Texts are no machine code: they stay out of the user's cache.
    patch.setattr(kernel_store, "cache_dir", lambda: folder)
    for c in caches:
        c.cache_clear()
    yield
    patch.undo()
    for c in caches:
        c.cache_clear()
