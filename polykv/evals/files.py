"""Files that results go to."""

from __future__ import annotations

import os
from pathlib import Path

from polykv.errors import ConfigError
from polykv.whole_file import whole_file


def check_apart(targets: dict[str, Path | None], sources: dict[str, str]) -> None:
    """Raise ConfigError when two options name one file, one of which would be written over it."""
    seen = {os.path.realpath(path): option for option, path in sources.items()}
    for option, path in targets.items():
        if path is not None:
            other = seen.setdefault(os.path.realpath(path), option)
            if other != option:
                raise ConfigError(f"{other} and {option} name the same file, {path}")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8, whole or not at all. Raises FormatError when it cannot be written."""
    with whole_file(path, private=False) as f:
        # Names of files may have bytes that are no text.
        f.write(text.encode(errors="backslashreplace"))
