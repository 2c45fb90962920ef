"""Ctrl-C at every line: runs a function again and again and raises KeyboardInterrupt at the next line each time."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupt_at(n: int, action: Callable[[], Any], files: tuple[str, ...]) -> bool:
    """Run action, raise KeyboardInterrupt in front of the n-th line that runs in one of the files (ends of paths, or
    parts that begin with /); False when it ended before that."""
    left = n

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in files):
            return None
        # The interpreter looks for signals after calls only. The end of a block is reported as its `with` line again,
        # where the lock has been given back; and what is raised at a `try:` inside of one would never give it back.
        code = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not code.lstrip().startswith(("with ", "try:")):
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
