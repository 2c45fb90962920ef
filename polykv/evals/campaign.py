"""Many measurements that do not need each other: run anywhere, kept as they are done, continued when interrupted.

A task is a kind and JSON settings; what it does is a function of these alone (`polykv.evals.work`), so it may run in
this process, in others, or on other machines (`polykv.evals.executor`), and gives the same figures. Results go to a
file, one JSON line each, as they come; a campaign that finds its task there does not run it again.

    tasks = [Task("overview", {"model": "smollm2", "kv": kv, ...}) for kv in kvs]
    done = run(tasks, LocalProcesses(), Store(path))
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from polykv.errors import FormatError

Outcome = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Task:
    """What to do: settings are JSON values. A task that is to be done twice says so in its settings."""

    kind: str
    settings: dict[str, Any]

    @property
    def key(self) -> str:
        """Equal for equal kind and settings, on every machine."""
        text = json.dumps([self.kind, self.settings], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Executor(Protocol):
    """Where tasks run."""

    def run(self, tasks: list[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Outcomes in the order in which they are ready. One that failed is {"error": text}."""
        ...


class Store:
    """Outcomes in a file: {"key", "kind", "settings", "outcome"} per line. A last line that was cut off by a crash is
    dropped; anything else that does not fit raises FormatError, for another file must not be overwritten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done: dict[str, Outcome] = {}
        if path.exists():
            self._read(path.read_text(encoding="utf-8"))

    def _read(self, text: str) -> None:
        lines = text.split("\n")
        whole, rest = lines[:-1], lines[-1]
        for number, line in enumerate(whole, 1):
            try:
                entry = json.loads(line)
                self._done[entry["key"]] = entry["outcome"]
            except (ValueError, KeyError, TypeError) as e:
                raise FormatError(self._path, f"line {number}", "not an entry of a campaign") from e
        if rest:
            # Written again whole, so that the next entry begins a line of its own.
            part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            part.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
            part.replace(self._path)

    def __len__(self) -> int:
        return len(self._done)

    def get(self, task: Task) -> Outcome | None:
        """What is known of a task."""
        return self._done.get(task.key)

    def add(self, task: Task, outcome: Outcome) -> None:
        """Keep an outcome, on disk before this returns."""
        self._done[task.key] = outcome
        entry = {"key": task.key, "kind": task.kind, "settings": task.settings, "outcome": outcome}
        with self._path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(entry, ensure_ascii=False) + "\n")
            f.flush()
            os.fsync(f.fileno())


def run(
    tasks: list[Task],
    executor: Executor,
    store: Store | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> list[Outcome]:
    """Outcomes of all tasks, in their order. What failed is not kept in the store: the next run tries again.

    on_progress(done, total, text) counts tasks.
    """
    found: dict[str, Outcome] = {}
    for task in tasks:
        known = None if store is None else store.get(task)
        if known is not None:
            found[task.key] = known
    missing = list({t.key: t for t in tasks if t.key not in found}.values())
    done = len(tasks) - len(missing)
    if on_progress:
        on_progress(done, len(tasks), "measuring")
    for task, outcome in executor.run(missing):
        found[task.key] = outcome
        if store is not None and "error" not in outcome:
            store.add(task, outcome)
        done += 1
        if on_progress:
            on_progress(done, len(tasks), "measuring")
    return [found[t.key] for t in tasks]
