"""Ctrl-C at every line: runs a function again and again and raises KeyboardInterrupt at the next line each time."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any


def interrupt_at(n: int, action: Callable[[], Any], files: tuple[str, ...]) -> bool:
    """Run action, raise KeyboardInterrupt in front of the n-th line that runs in one of the files (ends of paths, or
    parts that begin with /); False when it ended before that."""
    left = n

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        blocks = _blocks(frame.f_code.co_filename, files)
        if blocks is None:
            return None
        if event == "line" and frame.f_lineno not in blocks:
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@cache
def _blocks(filename: str, files: tuple[str, ...]) -> frozenset[int] | None:
    """Numbers of the `with` and `try:` lines of a file; None when it is none of `files`.

    The interpreter looks for signals after calls only. The end of a block is reported as its `with` line again, where
    the lock has been given back; and what is raised at a `try:` inside of one would never give it back.
    """
    if not any(part in filename for part in files):
        return None
    lines = enumerate(linecache.getlines(filename), 1)
    return frozenset(i for i, line in lines if line.lstrip().startswith(("with ", "try:")))
