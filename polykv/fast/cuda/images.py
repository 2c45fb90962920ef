"""Machine code of kernels: what an earlier process has kept on disk, else compiled by NVRTC and kept.

Kept in the same place, and by the same rules, as the kernels of `cpu` (kernel_store.py): a folder for every version of
a file's text, options and compiler, in it an image for every set of defines and architecture.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polykv.errors import UnsupportedError
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.source import Defines, source
from polykv.fast.kernel_store import folder, read, write

# No fast math. No contraction either: where a product and a sum are to be rounded once the source says fmaf(), so its
# results are those of its text, on every architecture and for every compiler (tests run device functions on the CPU).
# Denormal float32 numbers are taken, and given, as zero: nothing may rest on them.
OPTIONS: tuple[str, ...] = ("--std=c++17", "--fmad=false", "-ftz=true")

Told = Callable[[], None]


@dataclass
class Tally:
    """Kernels of this process. compiled: by NVRTC, in so many seconds; loaded: from disk. watchers: who is told when a
    compilation begins, and when it ends."""

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0
    watchers: list[tuple[Told, Told]] = field(default_factory=list)

    @contextmanager
    def compilation(self) -> Iterator[None]:
        """Count and time what is compiled in it."""
        watchers, began = list(self.watchers), time.perf_counter()
        for begins, _ in watchers:
            begins()
        try:
            yield
        finally:
            self.compiled += 1
            self.seconds += time.perf_counter() - began
            for _, ends in reversed(watchers):
                ends()


# Compiled kernels belong to the process, whoever asks for them first; so does what they took.
TALLY = Tally()


def compiled() -> dict[str, float]:
    """Kernels of this process that were compiled, the seconds that took, and those that came from disk."""
    return {"compiled": TALLY.compiled, "seconds": TALLY.seconds, "from_disk": TALLY.loaded}


@contextmanager
def compiling(begins: Told, ends: Told) -> Iterator[None]:
    """In it the two are called whenever a compilation begins and ends."""
    watcher = begins, ends
    TALLY.watchers.append(watcher)
    try:
        yield
    finally:
        TALLY.watchers.remove(watcher)


def image(file: str, defines: Defines, arch: str = "") -> bytes:
    """Machine code of kernels/`file` for the current device; arch: with instructions of that architecture alone.

    Raises UnsupportedError when the compiler refuses the source.
    """
    text, nvrtc = source(file, defines), cupy().cuda.nvrtc
    arch, real = (arch, True) if arch else architecture(device().capability, nvrtc.getSupportedArchs())
    path = _path(file, defines, arch)
    found = None if path is None else read(path)
    if found is not None:
        TALLY.loaded += 1
        return found
    with TALLY.compilation():
        made = _compiled(nvrtc, file, text, arch, real)
    if path is not None:
        write(path, made)
    return made


def architecture(capability: tuple[int, int], known: tuple[int, ...]) -> tuple[str, bool]:
    """What to compile for, and whether it is machine code of a real architecture: of the device, or of the latest one
    before it of the same generation that the compiler knows; else a virtual one, which the driver translates.

    >>> architecture((9, 0), (80, 90)), architecture((8, 9), (80, 86, 90)), architecture((12, 0), (80, 90))
    (('sm_90', True), ('sm_86', True), ('compute_90', False))
    """
    number = 10 * capability[0] + capability[1]
    older = [n for n in known if n <= number]
    best = max(older, default=number)
    return (f"sm_{best}", True) if best // 10 == capability[0] else (f"compute_{best}", False)


def _path(file: str, defines: Defines, arch: str) -> Path | None:
    """Where the image of a file is kept; None when nowhere."""
    version = hashlib.blake2b(repr((OPTIONS, device().runtime)).encode(), digest_size=12)
    version.update(source(file, {}).encode())
    place = folder(f"cuda_{file.removesuffix('.cu')}", version.hexdigest())
    own = hashlib.blake2b(repr((sorted(defines.items()), arch)).encode(), digest_size=8).hexdigest()
    return None if place is None else place / f"{file.removesuffix('.cu')}-{own}.bin"


def _compiled(nvrtc: Any, file: str, text: str, arch: str, real: bool) -> bytes:
    program = nvrtc.createProgram(text, file, (), ())
    try:
        nvrtc.compileProgram(program, (f"-arch={arch}", *OPTIONS))
        made: bytes = nvrtc.getCUBIN(program) if real else nvrtc.getPTX(program)
    except nvrtc.NVRTCError as e:
        log = str(nvrtc.getProgramLog(program)) or str(e)
        raise UnsupportedError(f"{file} does not compile on this machine: {first_error(log)}") from e
    finally:
        nvrtc.destroyProgram(program)
    return made


def first_error(log: str) -> str:
    """The first error of a compiler's log, or its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["no message"]
    return next((line for line in lines if re.search(r"\berror\b", line)), lines[0])
