"""Kernels for one architecture alone: with instructions that no later one has (`wgmma`, sm_90a), which CuPy's compiler
does not ask for.

They are compiled anew in every process: a second or two for a kernel.
"""

from __future__ import annotations

from typing import Any

from polykv.errors import UnsupportedError
from polykv.fast.cuda.device import cupy

# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the CUDA driver API.
MOST_SHARED = 8


class ExactKernel:
    """A kernel as CuPy's RawKernel is one. Raises UnsupportedError with the compiler's log when it refuses the text."""

    def __init__(self, text: str, entry: str, arch: str, options: tuple[str, ...]) -> None:
        cuda = cupy().cuda
        program = cuda.nvrtc.createProgram(text, f"{entry}.cu", (), ())
        try:
            cuda.nvrtc.compileProgram(program, (*options, f"--gpu-architecture={arch}"))
            image = cuda.nvrtc.getCUBIN(program)
        except cuda.nvrtc.NVRTCError as e:
            raise UnsupportedError(cuda.nvrtc.getProgramLog(program)) from e
        finally:
            cuda.nvrtc.destroyProgram(program)
        module = cuda.function.Module()
        module.load(image)
        self.kernel = module.get_function(entry)
        self._shared = 0

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Bytes of dynamic shared memory that a block may have."""
        return self._shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        cupy().cuda.driver.funcSetAttribute(self.kernel.ptr, MOST_SHARED, size)
        self._shared = size

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        self.kernel(grid, block, args, shared_mem=shared_mem)
