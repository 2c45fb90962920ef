"""Fixtures shared by all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import platformdirs
import pytest

GOLDEN = Path(__file__).parent / "golden"

# A shell that starts a job in the background leaves it with Ctrl-C ignored, and its children too; tests interrupt both.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
