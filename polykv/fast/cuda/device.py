"""CuPy and the device, or one sentence that says what is missing.

CuPy is an optional package: it is imported here alone, when a kernel is first needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType

from polykv.errors import UnsupportedError

# Compute capability that the kernels are written for: Ampere and later.
LOWEST = (8, 0)


@dataclass(frozen=True)
class Device:
    """The GPU that is used. memory: bytes on the card; capability: (major, minor); runtime: CUDA version of CuPy."""

    name: str
    capability: tuple[int, int]
    memory: int
    processors: int
    # Bytes of shared memory of a multiprocessor.
    shared: int
    runtime: tuple[int, int]

    @property
    def arch(self) -> str:
        """Its name as compilers write it, for example sm_90."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, compute capability {major}.{minor}, {self.memory / 1e9:.1f} GB of memory"


@cache
def cupy() -> ModuleType:
    """The module `cupy`, on a machine where it can run kernels.

    Raises UnsupportedError with one sentence when CuPy, a driver or a device is missing, or they do not fit each other.
    """
    module = _module()
    describe(module)
    return module


@cache
def device() -> Device:
    """The current device. Raises UnsupportedError as `cupy` does."""
    return describe(cupy())


def problem() -> str | None:
    """None when kernels can run here, else the sentence that `cupy` would raise."""
    try:
        cupy()
    except UnsupportedError as e:
        return str(e)
    return None


def _module() -> ModuleType:
    try:
        import cupy as module
    except ModuleNotFoundError as e:
        if e.name != "cupy":
            raise UnsupportedError(f"CuPy does not import ({_line(e)}); install it again: {_ADVICE}") from e
        raise UnsupportedError(f"CuPy is not installed; {_ADVICE}") from e
    except Exception as e:
        # CuPy raises ImportError, OSError or its own errors, depending on which library it does not find.
        raise UnsupportedError(f"CuPy does not import ({_line(e)}); install it again: {_ADVICE}") from e
    found: ModuleType = module
    return found


_ADVICE = "`pip install '.[cuda]'` brings it for CUDA 12, `pip install cupy-cuda13x` for CUDA 13"


def describe(module: ModuleType) -> Device:
    """What CuPy says about the current device.

    Raises UnsupportedError, in the order in which things go wrong: no driver, a driver older than the CUDA of this
    CuPy, no device, a device that is too old, libraries that cannot be loaded.
    """
    try:
        runtime = module.cuda.runtime
        built, driver = runtime.runtimeGetVersion(), runtime.driverGetVersion()
    except Exception as e:
        raise UnsupportedError(f"CuPy cannot load CUDA ({_line(e)}); {_ADVICE}") from e
    if driver == 0:
        raise UnsupportedError("CuPy is installed, but there is no NVIDIA driver: the GPU cannot be used")
    if driver // 1000 < built // 1000:
        raise UnsupportedError(
            f"CuPy is built for CUDA {_dotted(built)}, but the driver knows CUDA {_dotted(driver)} at most; "
            f"install cupy-cuda{driver // 1000}x in its place, or a newer driver"
        )
    try:
        if runtime.getDeviceCount() == 0:
            raise UnsupportedError("an NVIDIA driver is installed, but it shows no GPU")
        found = runtime.getDeviceProperties(runtime.getDevice())
    except UnsupportedError:
        raise
    except Exception as e:
        raise UnsupportedError(f"the GPU cannot be used: {_line(e)}") from e
    try:
        nvrtc = module.cuda.nvrtc.getVersion()
    except Exception as e:
        wheel = f"cupy-cuda{built // 1000}x[ctk]"
        raise UnsupportedError(f"CuPy finds no NVRTC, CUDA's compiler; `pip install '{wheel}'` brings it") from e
    name = found["name"]
    name = name.decode() if isinstance(name, bytes) else str(name)
    capability = int(found["major"]), int(found["minor"])
    if capability < LOWEST:
        have, want = (".".join(map(str, c)) for c in (capability, LOWEST))
        raise UnsupportedError(f"{name} has compute capability {have}; the kernels need {want} or more")
    memory, processors = int(found["totalGlobalMem"]), int(found["multiProcessorCount"])
    shared = int(found["sharedMemPerMultiprocessor"])
    return Device(name, capability, memory, processors, shared, (int(nvrtc[0]), int(nvrtc[1])))


def _dotted(version: int) -> str:
    """12.9 for 12090."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _line(e: BaseException) -> str:
    """The first line of a message."""
    return (str(e).strip() or type(e).__name__).splitlines()[0].rstrip(".")
