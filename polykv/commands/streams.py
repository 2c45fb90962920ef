"""The three standard streams of the process, as `polykv` needs them."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from types import TracebackType
from typing import Literal, NoReturn, TextIO

from polykv.printable import printable


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
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable


def say(line: str) -> None:
    """A line on stderr, above a spinner or bar that is being shown."""
    # Not click.echo: it goes around the stream that rich puts in place while it draws, and so into the bar.
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # Nobody reads it, or its disk is full: results do not end for want of remarks.
        drop(sys.__stderr__ or sys.stderr)


def error(text: object) -> None:
    """The line of stderr that a run ends with, or a turn of a conversation."""
    say(f"polykv: error: {printable(str(text))}")


def leave(code: int) -> NoReturn:
    """Exit. Ctrl-C from here on ends the process at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _uncaught(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """No traceback for Ctrl-C again and again, which may hit the answer to the first one; the process ends all the
    same, by the signal."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, value, trace)


def _unraisable(event: sys.UnraisableHookArgs) -> None:
    """The same where nobody can catch it, as in a finalizer."""
    if not issubclass(event.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(event)


def _one_line(message: Warning | str, *where: object, **more: object) -> None:
    """A warning as users can read it: without the line of source that gave it."""
    say(f"polykv: warning: {message}")


def _existing(stream: TextIO | None, mode: Literal["r", "w"]) -> TextIO:
    """The stream, or the null device for one that was closed (`>&-`), which Python represents as None."""
    if stream is None:
        return open(os.devnull, mode, encoding="utf-8")
    return stream


def drop(stream: TextIO) -> None:
    """Point stdout or stderr elsewhere, so that nothing more fails on it, exit included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
