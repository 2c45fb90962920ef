"""How CPU kernels are compiled and where the machine code is kept.

`kernel` is numba's `njit` with a disk cache whose key is a hash of the file that holds the kernel and of all files of
this package that it imports: numba's own cache looks at one file's date and so misses an edit of a helper in another
file. The cache lives in the user's cache directory; when that cannot be written, kernels are compiled in memory and
`cache_state()` says so.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

_IMPORT = re.compile(r"^\s*(?:from polykv\.fast\.cpu\.(\w+) import|from polykv\.fast\.cpu import (\w+))", re.M)


# Kernels of this process that the cache directory did not take.
unsaved: list[str] = []


@cache
def sources(path: Path) -> tuple[Path, ...]:
    """The file and every file of this package that it imports, directly or not."""
    found, todo = [path], [path]
    while todo:
        for match in _IMPORT.finditer(todo.pop().read_text()):
            other = path.parent / f"{match[1] or match[2]}.py"
            if other.is_file() and other not in found:
                found.append(other)
                todo.append(other)
    return tuple(sorted(found))


@cache
def source_hash(path: Path) -> str:
    """Hash of the sources that decide the machine code of the kernels in `path`, and of the numba version."""
    h = hashlib.blake2b(numba.__version__.encode(), digest_size=12)
    for source in sources(path):
        h.update(source.name.encode() + source.read_bytes())
    return h.hexdigest()


@cache
def cache_dir() -> Path | None:
    """Directory of compiled kernels; None when it neither exists nor can be made."""
    path = Path(platformdirs.user_cache_dir("polykv")) / "kernels"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError:
        # A read-only directory that an earlier run filled still serves as a source of compiled kernels.
        return path if path.is_dir() and os.access(path, os.R_OK) else None


def cache_state() -> str:
    """One sentence for `doctor` and reports."""
    path = cache_dir()
    if path is None:
        return "no writable cache directory: kernels are compiled anew in every process"
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


class _Locator(_CacheLocator):
    """Tells numba where the index and machine code of a function live."""

    def __init__(self, py_file: str) -> None:
        self._stamp = source_hash(Path(py_file))
        self._path = cache_dir()

    def get_cache_path(self) -> str:
        return f"{self._path}/{self._stamp}"

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return "0"

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:
        return cls(py_file) if cache_dir() is not None else None


class _Files(IndexDataCacheFile):
    """An index and the files it names, safe for processes that compile at the same time.

    numba numbers the files from what it read in the index. Two processes that compile different signatures of one
    kernel both take the same number, and the index may then name machine code of the other signature. Here names are
    never used twice, and a file is complete before the index names it; the worst of a race is a file without a name.
    """

    def save(self, key: Any, data: Any) -> None:
        name = self._index_name.replace(".nbi", f".{uuid.uuid4().hex}.nbc")
        self._save_data(name, data)  # type: ignore[no-untyped-call]
        overloads = self._load_index() | {key: name}
        self._save_index(overloads)  # type: ignore[no-untyped-call]

    def load(self, key: Any) -> Any:
        try:
            return super().load(key)  # type: ignore[no-untyped-call]
        except Exception:
            # A damaged pickle raises anything. Its kernel is compiled again and replaces it.
            return None

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())  # type: ignore[no-untyped-call]
        except Exception:
            return {}


class _Impl(CompileResultCacheImpl):
    _locator_classes: Any = (_Locator,)


class _Cache(FunctionCache):
    _impl_class = _Impl

    def __init__(self, py_func: Callable[..., Any]) -> None:
        super().__init__(py_func)  # type: ignore[no-untyped-call]
        locator = self._impl.locator
        self._cache_file = _Files(locator.get_cache_path(), self._impl.filename_base, locator.get_source_stamp())  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        path = cache_dir()
        if path is None or not os.access(path, os.W_OK):
            return
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as e:
            # Disk full or quota: the kernel is there, only not for the next process.
            unsaved.append(f"{self._impl.filename_base}: {e.strerror or e}")


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: `njit(nogil=True, error_model="numpy", **options)` with the cache above."""

    def wrap(fn: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, error_model="numpy", **options)(fn)
        if cache_dir() is not None and Path(fn.__code__.co_filename).is_file():
            dispatcher._cache = _Cache(fn)
        return dispatcher

    return wrap
