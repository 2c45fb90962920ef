"""Files of compiled kernels: two processes that write at once, damage, a disk that is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polykv.fast.cpu import _jit
from polykv.fast.cpu._jit import _Files


class Blind(_Files):
    """A process that has read the index before the other wrote it."""

    def _load_index(self) -> dict[Any, str]:
        return {}


def test_code_of_one_signature_is_never_found_under_another(tmp_path: Path) -> None:
    names = (str(tmp_path), "kernel", "stamp")

    class Interrupted(Blind):
        def _save_data(self, name: str, data: object) -> None:
            Blind(*names).save("float", "code for float")
            super()._save_data(name, data)  # type: ignore[no-untyped-call]

    Interrupted(*names).save("int", "code for int")
    for signature in ("int", "float"):
        assert _Files(*names).load(signature) in (None, f"code for {signature}")
    assert _Files(*names).load("int") == "code for int"


def test_damaged_files_are_not_found(tmp_path: Path) -> None:
    files = _Files(str(tmp_path), "kernel", "stamp")
    files.save("int", "code")
    for path in tmp_path.iterdir():
        whole = path.read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], b"\xff" * 50):
            path.write_bytes(damaged)
            assert files.load("int") is None
        path.write_bytes(whole)
    assert files.load("int") == "code"


def test_a_full_disk_is_noted_and_the_kernel_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jit, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(_jit, "unsaved", [])

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_Files, "_save_data", full)

    @_jit.kernel()
    def double(x: int) -> int:
        return 2 * x

    assert double(np.int64(4)) == 8
    assert "No space left on device" in str(_jit.cache_note())
