"""Outcomes of a campaign in a file, one JSON line each, kept as they come: an interrupted campaign goes on with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polykv.errors import ConfigError, FormatError
from polykv.evals.campaign import Outcome, Task

try:
    import fcntl
except ImportError:
    # A system without it does not keep two campaigns apart.
    fcntl = None  # type: ignore[assignment]

# How the line of an entry begins.
_BEGIN = '{"key": "'


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other campaigns away from a store. Raises ConfigError when one of them has it."""
    if fcntl is None:
        yield
        return
    try:
        # Opened for appending, which creates it: there may be nothing yet.
        f = path.open("a")
    except OSError as e:
        raise ConfigError(f"{path}: cannot be written: {e.strerror or e}") from None
    with f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{path}: another campaign is writing to it") from None
        yield


class Store:
    """Outcomes in a file: {"key", "kind", "settings", "outcome"} per line. A last line that was cut off by a crash is
    dropped; anything else that does not fit raises FormatError, for another file must not be written over.

    Raises ConfigError when the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: dict[str, Outcome] = {}
        try:
            if path.exists():
                self._read(path.read_bytes().decode())
        except UnicodeDecodeError:
            raise FormatError(path, "", "not the store of a campaign") from None
        except OSError as e:
            raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from None

    def _read(self, text: str) -> None:
        *whole, rest = text.split("\n")
        for number, line in enumerate(whole, 1):
            self._enter(line, number)
        if rest:
            if not (rest.startswith(_BEGIN) or _BEGIN.startswith(rest)):
                raise FormatError(self._path, f"line {len(whole) + 1}", "not an entry of a campaign")
            # So that the next entry begins a line of its own. The file stays the same: a campaign may have it locked.
            os.truncate(self._path, len(text.encode()) - len(rest.encode()))

    def _enter(self, line: str, number: int) -> None:
        try:
            entry = json.loads(line)
            key, outcome = entry["key"], entry["outcome"]
        except (ValueError, RecursionError, KeyError, TypeError):
            key, outcome = None, None
        if not isinstance(key, str) or not isinstance(outcome, dict):
            raise FormatError(self._path, f"line {number}", "not an entry of a campaign")
        self._done[key] = outcome

    def __len__(self) -> int:
        return len(self._done)

    def get(self, task: Task) -> Outcome | None:
        """What is known of a task."""
        return self._done.get(task.key)

    def add(self, task: Task, outcome: Outcome) -> None:
        """Keep an outcome, on disk before this returns. Raises ConfigError when it cannot be kept."""
        self._done[task.key] = outcome
        entry = {"key": task.key, "kind": task.kind, "settings": task.settings, "outcome": outcome}
        try:
            with self._path.open("a", encoding="utf-8") as f:
                f.write(json.dumps(entry) + "\n")
                f.flush()
                os.fsync(f.fileno())
        except OSError as e:
            done = f"{len(self._done) - 1} cells that were done before are there"
            raise ConfigError(f"{self._path}: a cell cannot be kept: {e.strerror or e}; {done}") from None
