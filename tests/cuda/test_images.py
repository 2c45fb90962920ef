"""Machine code of kernels on disk: found again, damaged, or nowhere to go; who is told of what is compiled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pretend_cupy
import pytest

from polykv.commands.compiling import Compiling
from polykv.errors import UnsupportedError
from polykv.fast import kernel_store
from polykv.fast.cuda import compile as compiling
from polykv.fast.cuda import images
from polykv.fast.cuda.arrays import asarray, asnumpy
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.images import TALLY, Tally, architecture, image
from polykv.fast.cuda.norm import rms_norm

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The emulator in the place of CuPy, an empty folder for images, and counts from zero."""
    monkeypatch.setattr(images, "TALLY", Tally())
    with pretend_cupy.installed(tmp_path):
        yield tmp_path


def run() -> None:
    """A kernel, compiled or loaded as by a new process."""
    compiling._compiled.cache_clear()
    y = asnumpy(rms_norm(asarray(X), asarray(np.ones(64, np.float32)), 0.0))
    assert np.allclose(y, X / np.sqrt((X**2).mean()), rtol=1e-5)


def counts() -> tuple[int, int]:
    found = images.compiled()
    return int(found["compiled"]), int(found["from_disk"])


def test_the_second_process_compiles_nothing(machine: Path) -> None:
    run()
    assert counts() == (1, 0) and images.compiled()["seconds"] > 0
    run()
    assert counts() == (1, 1)
    (kept,) = (p for p in machine.rglob("*.bin"))
    assert kept.parent.name.startswith("cuda_norm-") and kept.name.startswith("norm-")


def test_a_damaged_image_is_made_anew(machine: Path) -> None:
    run()
    (kept,) = machine.rglob("*.bin")
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    with pytest.warns(kernel_store.KernelCacheWarning, match="is damaged"):
        run()
    assert counts() == (2, 0)
    run()
    assert counts() == (2, 1)


def test_nowhere_to_keep_it(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder at all; and one that takes nothing, which is noted."""
    monkeypatch.setattr(kernel_store, "cache_dir", lambda: None)
    run()
    run()
    assert counts() == (2, 0)
    file = machine / "file"
    file.write_text("")
    monkeypatch.setattr(kernel_store, "cache_dir", lambda: file)
    monkeypatch.setattr(kernel_store, "unsaved", [])
    run()
    assert counts() == (3, 0) and len(kernel_store.unsaved) == 1 and kernel_store.cache_note()


def test_another_text_or_compiler_is_another_image(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image("norm.cu", {"NORM_THREADS": 256})
    image("norm.cu", {"NORM_THREADS": 128})
    monkeypatch.setattr(images, "OPTIONS", (*images.OPTIONS, "-lineinfo"))
    image("norm.cu", {"NORM_THREADS": 256})
    assert counts() == (3, 0)
    image("norm.cu", {"NORM_THREADS": 256})
    assert counts() == (3, 1)


def test_users_are_told(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Compiling("cuda") as told:
        run()
    assert (told.kernels, told.seconds > 0) == (1, True)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("polykv: compiling GPU kernels, ") and last.startswith("polykv: compiled 1 kernels, ")
    with told:
        run()
    assert told.kernels == 1 and not capsys.readouterr().err and not images.TALLY.watchers


def test_a_source_that_is_refused(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str, options: tuple[str, ...]) -> None:
        raise RuntimeError("NVRTC_ERROR_COMPILATION (6)")

    nvrtc = cupy().cuda.nvrtc
    monkeypatch.setattr(nvrtc, "compileProgram", refuse)
    monkeypatch.setattr(nvrtc, "getProgramLog", lambda text: "note\nnorm.cu(3): error: no such thing\n")
    with pytest.raises(UnsupportedError, match=r"norm.cu does not compile on this machine: norm.cu\(3\): error"):
        run()
    assert not list(machine.rglob("*.bin"))


@pytest.mark.parametrize(
    ("capability", "known", "want"),
    [
        ((9, 0), (80, 86, 90), ("sm_90", True)),
        ((10, 3), (80, 90, 100), ("sm_100", True)),
        ((12, 0), (80, 90), ("compute_90", False)),
    ],
)
def test_what_is_compiled_for(capability: tuple[int, int], known: tuple[int, ...], want: tuple[str, bool]) -> None:
    assert architecture(capability, known) == want and TALLY is not None
