"""What a result was made of: program, machine, model, moment."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from polykv import __version__
from polykv.model.loader import Model
from polykv.types import Activations


def stamp(model: Model, *, backend: str, activations: Activations, threads: int | None = None) -> dict[str, Any]:
    """JSON-serialisable facts. Names of the machine or of folders are left out: results are passed on."""
    return {
        "polykv": __version__,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in ("numpy", "numba", "tokenizers")},
        "model": {
            "name": model.config.name,
            "arch": model.config.arch,
            "file": model.gguf.path.name,
            "bytes": model.gguf.data.size,
            "fingerprint": model.fingerprint,
        },
        "backend": backend,
        "activations": activations.name.lower(),
        "threads": threads,
    }


def made_by() -> dict[str, Any]:
    """What computed a figure: another program, or another processor, may round otherwise."""
    return {"polykv": __version__, "commit": commit(), "processor": _processor()}


def load_average() -> float | None:
    """Processes that wanted to run, over the last minute; None where the system does not tell."""
    return None if sys.platform == "win32" else os.getloadavg()[0]


def commit() -> str | None:
    """The commit that the sources are of, with `+` when they were changed; None outside a git tree."""

    def git(*args: str) -> str | None:
        try:
            found = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True)
        except OSError:
            return None
        return found.stdout.strip() or None

    folder = Path(__file__).parent
    # An installed copy may lie inside somebody else's tree.
    if git("ls-files", "--", Path(__file__).name) is None:
        return None
    return git("describe", "--always", "--dirty=+", "--abbrev=9")


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory in GB, system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_gb": _memory(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _memory() -> float | None:
    """Of the machine, in GB; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)


def _processor() -> str:
    """As the system names it; with the vector extensions, for some names say little."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return platform.processor() or platform.machine()
    facts = dict(line.partition(":")[::2] for line in info.read_text().split("\n\n")[0].splitlines())
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    names = [name for name in ("avx2", "avx512f", "avx512_vnni") if name in flags]
    return f"{facts.get('model name', platform.machine())} ({', '.join(names) or 'no avx2'})"
