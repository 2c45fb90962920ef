"""Outcomes of a campaign in a file, one JSON line each, kept as they come: an interrupted campaign goes on with it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polykv.counted import counted
from polykv.errors import ConfigError, FormatError
from polykv.evals.campaign import Outcome, Task

try:
    import fcntl
except ImportError:
    # A system without it does not keep two campaigns apart.
    fcntl = None  # type: ignore[assignment]

# How the line of an entry begins.
_BEGIN = b'{"key": "'


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
    """Outcomes in a file: {"key", "kind", "settings", "outcome", "sum"} per line; the key is of kind and settings, the
    sum of the outcome. A last line that was cut off by a crash is dropped. Other lines that are no whole entries are
    left where they are and told in `damaged`, by their numbers; what they held is not known.

    Raises FormatError for a file without any entry, which is another file and must not be written to; ConfigError when
    the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: dict[str, Outcome] = {}
        self.damaged: list[int] = []
        try:
            if path.exists():
                self._read(path.read_bytes())
        except OSError as e:
            raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from None

    def _read(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for number, line in enumerate(whole, 1):
            self._enter(line, number)
        cut_off = rest.startswith(_BEGIN) or _BEGIN.startswith(rest)
        if not cut_off:
            self.damaged.append(len(whole) + 1)
        if self.damaged and not self._done:
            raise FormatError(self._path, f"line {self.damaged[0]}", "not an entry of a campaign")
        # So that the next entry begins a line of its own. The file stays the same: a campaign may have it locked.
        if cut_off and rest:
            os.truncate(self._path, len(data) - len(rest))
        elif rest:
            with self._path.open("ab") as f:
                f.write(b"\n")

    def _enter(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            task, outcome = Task(entry["kind"], entry["settings"]), entry["outcome"]
            sound = entry["key"] == task.key and entry["sum"] == _sum(outcome) and isinstance(outcome, dict)
        except (ValueError, RecursionError, KeyError, TypeError):
            sound = False
        if sound:
            self._done[task.key] = outcome
        else:
            self.damaged.append(number)

    def __len__(self) -> int:
        return len(self._done)

    def get(self, task: Task) -> Outcome | None:
        """What is known of a task."""
        return self._done.get(task.key)

    def add(self, task: Task, outcome: Outcome) -> None:
        """Keep an outcome, on disk before this returns. Raises ConfigError when it cannot be kept."""
        before = counted(len(self._done), "cell")
        self._done[task.key] = outcome
        entry = {"key": task.key, "kind": task.kind, "settings": task.settings, "outcome": outcome}
        try:
            with self._path.open("a", encoding="utf-8") as f:
                f.write(json.dumps(entry | {"sum": _sum(outcome)}) + "\n")
                f.flush()
                os.fsync(f.fileno())
        except OSError as e:
            done = f"{before} of before kept"
            raise ConfigError(f"{self._path}: a cell cannot be kept: {e.strerror or e}; {done}") from None


def _sum(outcome: object) -> str:
    """Differs when anything in an outcome does."""
    return hashlib.blake2b(json.dumps(outcome, sort_keys=True).encode(), digest_size=8).hexdigest()
