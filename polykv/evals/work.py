"""What a process of a campaign does: one task from standard input, its outcome as the last line of standard output.

echo '{"kind": "overview", "settings": {...}}' | python -m polykv.evals.work
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from polykv.errors import PolyKVError
from polykv.evals.campaign import Outcome
from polykv.evals.overview import measure
from polykv.evals.shift_run import measure as measure_shift

# Between two looks at whether the starting process is still there.
SECONDS = 1.0
KINDS: dict[str, Callable[[dict[str, Any]], Outcome]] = {"overview": measure, "shift": measure_shift}


def perform(kind: str, settings: dict[str, Any]) -> Outcome:
    """The outcome of a task; {"error": text} for what a user can mend."""
    try:
        return KINDS[kind](settings)
    except PolyKVError as e:
        return {"error": str(e)}


def end_with(parent: int) -> None:
    """End this process when the one that started it is gone, however it ended: nobody waits for the outcome then."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS)
        os._exit(1)

    # Where the system gives orphans no new parent, the number stays and nothing happens.
    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """One task. {"parent": number of a process}: end with that one."""
    task = json.load(sys.stdin)
    if "parent" in task:
        end_with(task["parent"])
    print(json.dumps(perform(task["kind"], task["settings"])))


if __name__ == "__main__":
    main()
