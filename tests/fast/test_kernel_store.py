"""Compiled kernels on disk: found again, checked, never in the way. Processes use small kernels of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from numba.core.event import Listener, install_listener

from polykv.fast import kernel_store
from polykv.fast.cpu._jit import kernel
from polykv.fast.kernel_store import KernelCacheWarning, prune, read, usage, write

KERNELS = """
import numpy as np
from polykv.fast.cpu._jit import kernel

@kernel()
def times(x, factor):
    return x * factor

@kernel()
def ramp(n):
    out = np.empty(n, np.float32)
    for i in range(n):
        out[i] = np.tanh(times(i, 3)) + times(i, 4)
    return out
"""
WORKER = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import tiny
    result = tiny.ramp(5).tolist()
misses = sum(tiny.ramp.stats.cache_misses.values())
from polykv.fast import kernel_store
damaged = [str(w.message) for w in told if w.category is kernel_store.KernelCacheWarning]
print(json.dumps([result, misses, damaged + kernel_store.unsaved]))
"""
DAY = 86400


def start(folder: Path, before: str = "") -> subprocess.Popen[str]:
    """A process that runs tiny.ramp(5) from `folder`, with its cache beside it."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    args = [sys.executable, "-c", before + WORKER, str(folder)]
    return subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.py").write_text(KERNELS)
    return tmp_path


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "polykv" / "kernels").glob("*/*"))


needs_xdg = pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME moves the cache on Linux only")


@needs_xdg
def test_two_processes_at_once_then_found_then_damaged_then_edited(tiny: Path) -> None:
    pair = [start(tiny), start(tiny)]
    first, second = map(finish, pair)
    assert first[0] == second[0] and first[1] + second[1] >= 1
    assert first[2] == second[2] == []
    # The helper is part of `ramp`; nothing unfinished is left behind.
    (file,) = stored(tiny)
    assert finish(start(tiny)) == [first[0], 0, []]

    good = file.read_bytes()
    file.write_bytes(good[:-9] + bytes([good[-9] ^ 4]) + good[-8:])
    result, misses, warned = finish(start(tiny))
    assert (result, misses) == (first[0], 1)
    assert len(warned) == 1 and "is damaged" in warned[0] and str(file) in warned[0]
    assert finish(start(tiny)) == [first[0], 0, []]

    (tiny / "tiny.py").write_text(KERNELS.replace("x * factor", "x * factor + 1"))
    result, misses, _ = finish(start(tiny))
    assert misses == 1 and result != first[0]
    assert len(stored(tiny)) == 2


REFUSE = """
import errno, os, pathlib, tempfile
def refuse(*a, **k):
    raise OSError({0}, os.strerror({0}))
"""
READ_ONLY = REFUSE.format("errno.EROFS") + "tempfile.mkstemp = pathlib.Path.mkdir = os.utime = refuse\n"
FULL = REFUSE.format("errno.ENOSPC") + "os.replace = refuse\n"
HOMELESS = "import platformdirs\nplatformdirs.user_cache_dir = lambda name: '~/.cache/' + name\n"


@needs_xdg
def test_directories_that_cannot_be_written(tiny: Path) -> None:
    full = start(tiny, FULL)
    result, misses, warned = finish(full)
    assert misses == 1 and len(warned) == 1 and "No space left" in warned[0]
    assert stored(tiny) == []
    homeless, plain = start(tiny, HOMELESS), start(tiny)
    assert finish(homeless) == [result, 1, []]
    assert finish(plain) == [result, 1, []]
    assert not Path("~").exists()
    # A read-only directory gives what it has, and the rest is compiled in memory.
    assert finish(start(tiny, READ_ONLY)) == [result, 0, []]
    (tiny / "tiny.py").write_text(KERNELS + "\n")
    again, misses, warned = finish(start(tiny, READ_ONLY))
    assert (again, misses) == (result, 1) and len(warned) == 1 and "Read-only" in warned[0]


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 400])
def test_any_damage_is_noticed(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "m-0" / f"k{len(damage)}.bin"
    write(path, b"machine code")
    assert read(path) == b"machine code"
    path.write_bytes(damage)
    with pytest.warns(KernelCacheWarning, match="damaged"):
        assert read(path) is None
    assert read(tmp_path / "absent") is None


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_store.platformdirs, "user_cache_dir", lambda name: f"~/.cache/{name}")
    assert kernel_store.cache_dir.__wrapped__() is None


def make(root: Path, name: str, days: float) -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / "k.bin").write_bytes(b"0123456789")
    os.utime(path, (0, time.time() - days * DAY))
    return path


def test_old_versions_go(tmp_path: Path) -> None:
    hashes = [f"{i:024x}" for i in range(8)]
    edits = [make(tmp_path, f"attend-{h}", days) for h, days in zip(hashes, (6, 1, 2, 5, 3, 4), strict=False)]
    old, other = make(tmp_path, f"head-{hashes[0]}", 31), make(tmp_path, f"head-{hashes[1]}", 29)
    foreign = [make(tmp_path, "mine", 99), make(tmp_path, f"x-{hashes[0]}z", 99)]
    assert usage(tmp_path) == (10, 100, 8)
    gone = prune(tmp_path, keep=4, max_age=30)
    assert set(gone) == {edits[0], edits[3], old}
    assert not any(p.exists() for p in gone)
    assert all(p.exists() for p in (*edits[1:3], *edits[4:], other, *foreign))
    assert prune(tmp_path / "absent") == []


def test_reading_counts_as_use(tmp_path: Path) -> None:
    folder = make(tmp_path, f"attend-{0:024x}", 40)
    write(folder / "k.bin", b"code")
    os.utime(folder, (0, time.time() - 40 * DAY))
    assert read(folder / "k.bin") == b"code"
    assert prune(tmp_path) == []


def test_integer_literals_are_not_compiled_apart() -> None:
    # Closures are not kept on disk, so these are compiled in every run.
    none = 0

    @kernel()
    def helper(x: int, k: int, flag: bool) -> Any:
        return x + k + none if flag else x - k

    @kernel()
    def caller(x: int) -> Any:
        return helper(x, 1, True) + helper(x, 2, True) + helper(x, x, True) + helper(x, 3, False)

    seen: list[str] = []

    class Names(Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            seen.append(event.data["dispatcher"].py_func.__name__)

        def on_end(self, event: Any) -> None:
            """Nothing to note."""

    with install_listener("numba:compile", Names()):
        assert caller(10) == 11 + 12 + 20 + 7
        # Once for each truth value.
        assert sorted(seen) == ["caller", "helper", "helper"]
        # Called from Python it is made ready for that.
        assert helper(5, 2, True) == 7
        assert len(seen) == 4
