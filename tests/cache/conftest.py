"""Storage backends for cache tests."""

from __future__ import annotations

from typing import Any

import pytest
from case_base import HOSTS
from fakes import PlainOps

from polykv.ops import load


@pytest.fixture
def plain() -> Any:
    return PlainOps()


@pytest.fixture(params=["plain", *HOSTS])
def ops(request: pytest.FixtureRequest) -> Any:
    """Storage operations: the fake ones, and every backend."""
    return PlainOps() if request.param == "plain" else load(request.param)
