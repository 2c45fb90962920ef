"""Where machine code of kernels is kept between runs: one checked file per kernel and signature, or set of defines.

    <user cache>/polykv/kernels/<module>-<hash of its sources>/<kernel>-<hash of its signature and processor>.bin
    file = blake2b of the rest, 16 bytes | pickled result of a compilation, or what NVRTC made

* A file appears by rename, complete, and is never changed: any number of processes may read and write at once.
* A file whose checksum is wrong is not used: the kernel is compiled anew, with a `KernelCacheWarning`.
* What cannot be written (read-only directory, full disk) is not kept; reports say so (`cache_note`).
* Folders of sources that are gone are removed when something is compiled: those beyond the KEEP last used ones of a
  module, and those that nobody used for MAX_AGE days. Whoever uses a folder touches it. A process that loses one under
  its feet compiles again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path

import platformdirs

KEEP, MAX_AGE = 4, 30
_DAY = 86400.0
_DIGEST = 16
# Only folders that this file made are ever removed.
_FOLDER = re.compile(r"(\w+)-[0-9a-f]{24}")


# Kernels of this process that the directory did not take.
unsaved: list[str] = []


class KernelCacheWarning(UserWarning):
    """A compiled kernel was damaged; the program goes on with a fresh one."""


@cache
def cache_dir() -> Path | None:
    """Directory of compiled kernels; None when there is neither such a directory nor a place to make it."""
    path = Path(platformdirs.user_cache_dir("polykv")) / "kernels"
    if not path.is_absolute():
        # Without a home directory the path begins with a tilde, which would become a folder right here.
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A read-only directory that an earlier run filled still serves as a source of compiled kernels.
        return path if path.is_dir() else None
    return path


def cache_state() -> str:
    """One sentence for `doctor` and reports."""
    path = cache_dir()
    if path is None:
        return "no cache directory can be made: kernels are compiled anew in every process"
    if not os.access(path, os.W_OK):
        return f"{path} (read-only: kernels missing there are compiled in memory)"
    if unsaved:
        return f"{path} ({len(unsaved)} kernels could not be saved and will be compiled again; {unsaved[0]})"
    return str(path)


def cache_note() -> str | None:
    """What a user should know about the cache; None when it works."""
    path = cache_dir()
    sound = path is not None and os.access(path, os.W_OK) and not unsaved
    return None if sound else f"compiled kernels: {cache_state()}"


def folder(module: str, source_hash: str) -> Path | None:
    """Folder of the kernels of one version of a module."""
    path = cache_dir()
    return None if path is None else path / f"{module}-{source_hash}"


def read(path: Path) -> bytes | None:
    """What `write` has put there; None when there is nothing that can be used."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if _digest(data[_DIGEST:]) != data[:_DIGEST]:
        warnings.warn(f"{path} is damaged: the kernel is compiled anew", KernelCacheWarning, stacklevel=2)
        return None
    _touch(path.parent)
    return data[_DIGEST:]


def write(path: Path, data: bytes) -> None:
    """Keep `data`, or note in `unsaved` that it cannot be kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, _digest(data) + data)
    except OSError as e:
        unsaved.append(f"{path.stem}: {e.strerror or e}")
    else:
        _prune_once(path.parent.parent)


def _write(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


@cache
def _touch(path: Path) -> None:
    """Mark a folder as used; once in a process."""
    # Where that is not allowed, nobody removes anything either.
    with contextlib.suppress(OSError):
        os.utime(path)


@cache
def _prune_once(root: Path) -> None:
    prune(root)


def prune(root: Path, *, keep: int = KEEP, max_age: float = MAX_AGE) -> list[Path]:
    """Remove folders of old sources below `root`: all but the `keep` last used of a module, and those that were not
    used for `max_age` days. Returns what was removed."""
    versions: dict[str, list[tuple[float, Path]]] = {}
    for path in _folders(root):
        try:
            used = path.stat().st_mtime
        except OSError:
            # Another process has removed it in this moment.
            continue
        versions.setdefault(path.name.rpartition("-")[0], []).append((used, path))
    oldest = time.time() - max_age * _DAY
    gone = [
        path
        for found in versions.values()
        for rank, (used, path) in enumerate(sorted(found, reverse=True))
        if rank >= keep or used < oldest
    ]
    for path in gone:
        # What cannot be removed is left for the next time.
        shutil.rmtree(path, ignore_errors=True)
    return gone


def usage(root: Path) -> tuple[int, int, int]:
    """(kernels, bytes, folders) below `root`."""
    sizes = [p.stat().st_size for p in root.glob("*/*.bin")]
    return len(sizes), sum(sizes), len(_folders(root))


def _folders(root: Path) -> list[Path]:
    try:
        return [p for p in root.iterdir() if _FOLDER.fullmatch(p.name) and p.is_dir()]
    except OSError:
        return []
