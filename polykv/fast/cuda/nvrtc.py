"""Compiling for an architecture without a GPU: NVRTC through ctypes.

    made = compile_for("sm_90", source("norm.cu", {"NORM_THREADS": 256}))
    made.resources["rms_norm"].registers

The development tools bring the compiler as a wheel (nvidia-cuda-nvrtc-cu12); no CuPy, driver or toolkit is needed. So
every kernel is compiled in the ordinary test suite, with the options of `images.OPTIONS`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polykv.errors import UnsupportedError
from polykv.fast.cuda.images import OPTIONS, first_error


@dataclass(frozen=True)
class Resources:
    """What the assembler says about an entry function: registers per thread, and bytes of the local stack frame, of
    spilled registers (stores and loads) and of static shared memory."""

    registers: int
    stack: int
    spills: int
    shared: int


@dataclass(frozen=True)
class Binary:
    """A compiled program. log: everything that compiler and assembler said."""

    image: bytes
    log: str
    resources: dict[str, Resources]


@cache
def library() -> Path | None:
    """The NVRTC library of an installed wheel; None when there is none."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        for pattern in ("cuda_nvrtc/lib/libnvrtc.so.*", "cu*/lib/libnvrtc.so.*"):
            for path in sorted(Path(folder).glob(pattern)):
                if "alt" not in path.name:
                    return path
    return None


@cache
def _nvrtc() -> ctypes.CDLL:
    path = library()
    if path is None:
        raise UnsupportedError("NVRTC is not installed: `pip install nvidia-cuda-nvrtc-cu12` brings it")
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as e:
        raise UnsupportedError(f"NVRTC cannot be loaded: {e}") from e
    lib.nvrtcGetErrorString.restype = ctypes.c_char_p
    return lib


def compile_for(arch: str, text: str, *, name: str = "kernel.cu") -> Binary:
    """Machine code for an architecture, for example sm_90. Other threads may run meanwhile.

    Raises UnsupportedError with the first error of the log when the source is refused, or without NVRTC.
    """
    lib, program = _nvrtc(), ctypes.c_void_p()
    _check(lib, lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None))
    try:
        options = [o.encode() for o in (f"--gpu-architecture={arch}", *OPTIONS, "--ptxas-options=-v")]
        code = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = _text(lib, program, "ProgramLog").decode(errors="replace").strip("\0\n")
        if code != 0:
            raise UnsupportedError(f"{name} does not compile for {arch}: {first_error(log)}")
        return Binary(_text(lib, program, "CUBIN"), log, resources(log))
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _check(lib: ctypes.CDLL, code: int) -> None:
    if code != 0:
        raise UnsupportedError(f"NVRTC fails: {lib.nvrtcGetErrorString(code).decode()}")


def _text(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(lib, lib[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(lib, lib[f"nvrtcGet{what}"](program, room))
    return room.raw


def resources(log: str) -> dict[str, Resources]:
    """What the assembler's part of a log says, by entry function."""
    found: dict[str, Resources] = {}
    for part in log.split("Compiling entry function ")[1:]:
        name = re.match(r"'([^']+)'", part)
        if name is None:
            continue
        registers, stack = _number(r"Used (\d+) registers", part), _number(r"(\d+) bytes stack frame", part)
        # Functions that were not inlined have lines of their own.
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found[name[1]] = Resources(registers, stack, spills, _number(r"(\d+) bytes smem", part))
    return found


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
