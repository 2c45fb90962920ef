"""Arguments of the library whose type is wrong, refused by name before anything is done with them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from polykv.errors import ConfigError, PromptError


def check_whole(**values: object) -> None:
    """Raise ConfigError unless each value, called by its name, is an integer.

    >>> check_whole(agents=3)
    """
    for name, value in values.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number")


def check_path(name: str, file: object) -> None:
    """Raise ConfigError unless the file, of the argument called `name`, can be a path."""
    if not isinstance(file, str | Path):
        raise ConfigError(f"{name} has {file!r}; a file is named by a string or a Path")


def path_list(name: str, files: object) -> list[str | Path]:
    """The files of the argument called `name`. Raises ConfigError for what is no list of paths; one path is none."""
    if isinstance(files, str | Path) or not isinstance(files, Iterable):
        raise ConfigError(f"{name} is {files!r}; it must be a list of files")
    listed = list(files)
    for file in listed:
        check_path(name, file)
    return listed


def integers(items: object, wanted: str) -> list[int]:
    """The integers of an iterable. Raises PromptError, which says what is wanted, for anything else.

    >>> integers(np.arange(2), "token ids")
    [0, 1]
    """
    if not isinstance(items, Iterable) or isinstance(items, str | bytes):
        raise PromptError(wanted)
    listed = list(items)
    found = [int(i) for i in listed if isinstance(i, int | np.integer) and not isinstance(i, bool)]
    if len(found) != len(listed):
        raise PromptError(wanted)
    return found
