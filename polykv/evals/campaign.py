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
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from polykv.evals.store import Store

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

    def run(self, tasks: list[Task]) -> Generator[tuple[Task, Outcome], None, None]:
        """Outcomes in the order in which they are ready. One that failed is {"error": text}."""
        ...


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
    # Closed at once when an outcome cannot be kept: what is still running is not waited for.
    with closing(executor.run(missing)) as outcomes:
        for task, outcome in outcomes:
            found[task.key] = outcome
            if store is not None and "error" not in outcome:
                store.add(task, outcome)
            done += 1
            if on_progress:
                on_progress(done, len(tasks), "measuring")
    return [found[t.key] for t in tasks]
