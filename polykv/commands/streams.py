"""The three standard streams of the process, as `polykv` needs them."""

from __future__ import annotations

import io
import os
import sys
from typing import Literal, TextIO


def prepare() -> None:
    """Make all three usable: UTF-8 for what is printed, the null device for what the caller closed."""
    sys.stdin = _existing(sys.stdin, "r")
    sys.stdout = _existing(sys.stdout, "w")
    sys.stderr = _existing(sys.stderr, "w")
    for stream in (sys.stdout, sys.stderr):
        # Model output is UTF-8 whatever the locale says; a pipe with an ASCII locale must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _existing(stream: TextIO | None, mode: Literal["r", "w"]) -> TextIO:
    """The stream, or the null device for one that was closed (`>&-`), which Python represents as None."""
    if stream is None:
        return open(os.devnull, mode, encoding="utf-8")
    return stream


def drop_output() -> None:
    """Point stdout elsewhere, so that exit does not fail on flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
