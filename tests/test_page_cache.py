"""Model files in large pages: advice that may do nothing, but never harm."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from polykv.model.gguf import _map
from polykv.page_cache import ask_for_large_pages, forget, in_large_pages

SIZE = 12 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"GGUF" + np.random.default_rng(0).bytes(SIZE - 4))
    return path


def test_forgotten_files_keep_their_bytes(file: Path) -> None:
    before = file.read_bytes()
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        forget(file)
        ask_for_large_pages(mapped)
        assert mapped[:] == before
    forget(file)
    forget(file.with_name("missing"))
    assert file.read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_a_forgotten_file_is_mapped_in_large_pages(file: Path) -> None:
    forget(file)
    mapped = _map(file)
    assert in_large_pages(file.with_name("other")) == (0, 0)
    assert np.frombuffer(mapped, np.uint8)[::4096].sum() >= 0
    large, resident = in_large_pages(file)
    assert resident == SIZE and large <= resident
    if large == 0:
        pytest.skip("neither this kernel nor this file system has large pages for files (FilePmdMapped in smaps is 0)")
    # Its first pages were read before it was mapped, to see what it is.
    assert large >= SIZE // 2
