"""Files that appear whole or not at all, and the question whether they could, for before the work that fills them."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from polykv.errors import FormatError


@contextmanager
def whole_file(path: str | Path, *, private: bool = True) -> Iterator[BinaryIO]:
    """A temporary file beside `path` to write to, which takes its place, synced, when the block is over.

    private: only its owner can read it. Raises FormatError when it cannot be written; then, and when the block raises,
    an older file at `path` stays as it was.
    """
    path = Path(path)
    with _told(path):
        _check_kind(path)
        # Named before it is there: Ctrl-C in the moment of its making leaves nothing.
        temp = path.with_name(f".{path.name[:32]}.{secrets.token_hex(6)}")
        try:
            with open(temp, "xb", opener=partial(os.open, mode=0o600 if private else 0o666)) as f:
                yield f
                f.flush()
                os.fsync(f.fileno())
            os.replace(temp, path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def check_writable(path: str | Path) -> None:
    """Raise FormatError when `whole_file` could not write there; leaves nothing behind."""
    path = Path(path)
    with _told(path):
        _check_kind(path)
        tempfile.TemporaryFile(dir=path.parent).close()


def _check_kind(path: Path) -> None:
    # Not `Path.exists`, which knows no file with a NUL in its name.
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            # Renaming over a device or a pipe would put a plain file in its place.
            raise FormatError(path, "", "cannot be written: it exists and is not a regular file")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the system, and those of a path with a NUL character, as FormatError."""
    try:
        yield
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise FormatError(path, "", f"cannot be written: {reason}") from None
