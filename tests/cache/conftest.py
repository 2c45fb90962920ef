"""Storage backends for cache tests."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import PlainOps


@pytest.fixture
def plain() -> Any:
    return PlainOps()
