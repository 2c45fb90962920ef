"""How CPU kernels are compiled and found again.

`kernel` is numba's `njit` with two differences.

Compiled kernels are kept on disk (kernel_store.py) under a hash of the file that holds the kernel and of all files of
this package that it imports: numba's own cache looks at one file's date and so misses an edit of a helper elsewhere.

A kernel that other kernels call has a second form for them, without the wrappers that make a function callable from
Python and by address: numba makes those for every function it compiles, and they took half the time of a first run.
Integer literals are no types of their own there, or `claim(desk, 0)` and `claim(desk, 1)` would be compiled apart.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import sys
from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import codegen, compiler, registry, serialize
from numba.core import types as numba_types
from numba.core.caching import _Cache
from numba.core.runtime import nrt

from polykv.fast.kernel_store import folder, read, write

# numba is untyped or typed in part.
types: Any = numba_types
CompileResult: Any = compiler.CompileResult
JITCodeLibrary: Any = codegen.JITCodeLibrary
CPUDispatcher: Any = registry.CPUDispatcher
dumps: Any = serialize.dumps
rtsys: Any = nrt.rtsys

_IMPORT = re.compile(r"^\s*(?:from polykv\.fast\.cpu\.(\w+) import|from polykv\.fast\.cpu import (\w+))", re.M)
_VERSIONS = f"{numba.__version__} {llvmlite.__version__} {sys.version}"


@cache
def _imports(path: Path) -> tuple[Path, ...]:
    """Files of this package that the file imports."""
    others = (path.parent / f"{m[1] or m[2]}.py" for m in _IMPORT.finditer(path.read_text()))
    return tuple(p for p in others if p.is_file())


@cache
def sources(path: Path) -> tuple[Path, ...]:
    """The file and every file of this package that it imports, directly or not."""
    found, todo = {path}, [path]
    while todo:
        new = set(_imports(todo.pop())) - found
        found |= new
        todo += new
    return tuple(sorted(found))


@cache
def source_hash(path: Path) -> str:
    """Hash of the sources that decide the machine code of the kernels in `path`, and of the versions that compile."""
    h = hashlib.blake2b(_VERSIONS.encode(), digest_size=12)
    for source in sources(path):
        h.update(source.name.encode() + source.read_bytes())
    return h.hexdigest()


class _Disk(_Cache):
    """The cache of one kernel, as numba's dispatcher asks for it."""

    def __init__(self, fn: Callable[..., Any], path: Path) -> None:
        self._name = fn.__qualname__.replace("<locals>.", "")
        self._path = path
        # Tells two functions of one name apart.
        self._own = fn.__code__.co_code + repr(fn.__code__.co_consts).encode()

    @property
    def cache_path(self) -> str:
        return str(self._path)

    def _file(self, signature: Any, context: Any) -> Path:
        h = hashlib.blake2b(self._own, digest_size=8)
        h.update(repr((signature, context.codegen().magic_tuple())).encode())
        return self._path / f"{self._name}-{h.hexdigest()}.bin"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # numba would first set up everything that a compilation needs: 0.2 s and 24 MB, and in most runs for nothing.
        data = read(self._file(sig, target_context))
        return None if data is None else _restore(target_context, *pickle.loads(data))

    def save_overload(self, sig: Any, data: Any) -> None:
        # Addresses of this process (ctypes functions, large arrays) mean nothing in another.
        if not data.library.has_dynamic_globals:
            write(self._file(sig, data.target_context), _reduce(data))

    def enable(self) -> None:
        """Nothing to do: the cache is always on."""

    def disable(self) -> None:
        """Nothing to do: the cache is always on."""

    def flush(self) -> None:
        """Nothing to do: files are never changed."""


def _reduce(result: Any) -> bytes:
    """What has to be kept of a compilation. numba would also keep bitcode, for linking into other kernels; they have
    forms of their own, and parsing it took 9 MB."""
    library, fndesc = result.library, result.fndesc
    fndesc.typemap = fndesc.calltypes = None
    symbols = [f.name for f in library.get_defined_functions()]
    symbols += [g.name for g in library._final_module.global_variables if not g.is_declaration]
    parts = (library.name, library._get_compiled_object(), symbols, fndesc, result.environment, result.signature)
    return bytes(dumps((*parts, result.reload_init, result._find_referenced_environments())))


def _restore(
    context: Any,
    name: str,
    code: bytes,
    symbols: list[str],
    fndesc: Any,
    env: Any,
    signature: Any,
    init: Any,
    envs: Any,
) -> Any:
    """The inverse of `_reduce`."""
    for prepare in init:
        prepare()
    if b"NRT_" in code:
        rtsys.initialize(context)
    machine = context.codegen()
    library = JITCodeLibrary(machine, name)
    library.enable_object_caching()
    library._set_compiled_object(code)
    library._finalize_final_module()
    machine._engine._defined_symbols.update(symbols)
    for e in envs:
        machine.set_env(e.env_name, e)
    return CompileResult(
        typing_context=context.typing_context,
        target_context=context,
        entry_point=context.get_executable(library, fndesc, env),
        typing_error=None,
        type_annotation="",
        signature=signature,
        objectmode=False,
        lifted=(),
        fndesc=fndesc,
        library=library,
        call_helper=None,
        environment=env,
        metadata=None,
        reload_init=init,
        referenced_envs=envs,
    )


# No GIL, and IEEE division: what numba's `njit(nogil=True, error_model="numpy")` sets.
_OPTIONS = {"nopython": True, "nogil": True, "error_model": "numpy", "boundscheck": None}


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A compiled function, and the form of it that other kernels take in."""

    def __init__(self, fn: Callable[..., Any], inlined: bool = False) -> None:
        super().__init__(fn, targetoptions=dict(_OPTIONS))
        self._inlined = inlined
        path = Path(fn.__code__.co_filename)
        # What a closure holds is in no source: such kernels live as long as the process.
        place = folder(path.stem, source_hash(path)) if path.is_file() and not fn.__closure__ else None
        if place is not None:
            self._cache = _Disk(fn, place)

    @cached_property
    def _inner(self) -> Any:
        options = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": self._inlined}
        return CPUDispatcher(self.py_func, targetoptions=options)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """numba asks for this when another kernel calls this one."""
        return self._inner.get_call_template(tuple(map(_plain, args)), kws)

    def get_overload(self, sig: Any) -> Any:
        """The form for other kernels."""
        return self._inner.get_overload(sig)


def _plain(kind: Any) -> Any:
    """The type without integer literals. Boolean ones stay: kernels choose between variants by them."""
    if isinstance(kind, types.BaseTuple):
        return types.unliteral(kind)
    return types.unliteral(kind) if isinstance(kind, types.IntegerLiteral) else kind


def kernel(*, inlined: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator that makes a `Kernel` of a function.

    inlined: its form for other kernels becomes part of every one that calls it, whatever the compiler thinks of its
    size: for functions that return many vectors, which would otherwise go through memory.
    """
    return partial(Kernel, inlined=inlined)
