"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest

# Two processes share the tests, and threads of NumPy's BLAS wait for each other by spinning: with more of them than
# cores a product of matrices takes ten times as long. It reads this when NumPy is first imported: by a test file.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "golden"

# A shell that starts a job in the background leaves it with Ctrl-C ignored, and its children too; tests interrupt both.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collected tests are half a million objects that stay: neither their making nor a test's `gc.collect` is to look
    at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests without CPU kernels first: one of two processes is busy with them while the other, which begins in the
    middle, compiles most kernels. Where none are kept yet, both would compile the same ones otherwise."""
    items.sort(key=lambda item: item.path.parent.name not in ("cuda", "ref"))


@pytest.fixture(scope="module", autouse=True)
def settled() -> None:
    """The same for what the tests of other files have left: tests of Ctrl-C collect garbage hundreds of times."""
    gc.collect()
    gc.freeze()


def _model(name: str) -> Path:
    path = Path(platformdirs.user_cache_dir("polykv")) / "models" / f"{name}.gguf"
    if not path.is_file():
        pytest.skip(f"{path} is missing: run `polykv pull {name}` (make test does)")
    return path


@pytest.fixture(scope="session")
def golden() -> Path:
    """Directory of golden vectors (provenance: tests/golden/README.md)."""
    return GOLDEN


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return _model("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    return _model("gemma3")
