"""The three standard streams of the process, as `polykv` needs them."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Literal, TextIO


def prepare() -> None:
    """Make all three usable: UTF-8 for what is printed, the null device for what the caller closed. Warnings of the
    library become lines of stderr."""
    sys.stdin = _existing(sys.stdin, "r")
    sys.stdout = _existing(sys.stdout, "w")
    sys.stderr = _existing(sys.stderr, "w")
    for stream in (sys.stdout, sys.stderr):
        # Model output is UTF-8 whatever the locale says; a pipe with an ASCII locale must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    warnings.showwarning = _one_line


def _one_line(message: Warning | str, *where: object, **more: object) -> None:
    """A warning as users can read it: without the line of source that gave it."""
    print(f"polykv: warning: {message}", file=sys.stderr, flush=True)


def _existing(stream: TextIO | None, mode: Literal["r", "w"]) -> TextIO:
    """The stream, or the null device for one that was closed (`>&-`), which Python represents as None."""
    if stream is None:
        return open(os.devnull, mode, encoding="utf-8")
    return stream


def drop_output() -> None:
    """Point stdout elsewhere, so that exit does not fail on flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
