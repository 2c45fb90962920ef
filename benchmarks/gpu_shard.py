"""A plugin of pytest for gpu_sanitize.py: `--shard 3/15` takes every fifteenth test from the fourth on, `--define NAME`
has kernels compiled with it.

Each is logged at once, so that processes that are stopped have said what they ran; a kernel that crashes spoils the
tests of its shard alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from polykv.fast.cuda import images


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="0/1", help="which part of the tests, of how many")
    parser.addoption("--define", action="append", default=[], help="of the compiler of kernels")
    parser.addoption("--shard-log", type=Path, help="file that takes a line for every test")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--shard").split("/"))
    items[:] = items[part::parts]
    config.getoption("--shard-log").write_text(f"collected {len(items)}\n", encoding="utf-8")


class Log:
    """Writes how every test came out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            with self.path.open("a", encoding="utf-8") as f:
                f.write(f"{report.outcome} {report.duration:.1f} {report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    images.OPTIONS = (*images.OPTIONS, *(f"-D{name}" for name in config.getoption("--define")))
    config.pluginmanager.register(Log(config.getoption("--shard-log")))
