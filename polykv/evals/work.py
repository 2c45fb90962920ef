"""What a process of a campaign does: one task from standard input, its outcome as the last line of standard output.

echo '{"kind": "overview", "settings": {...}}' | python -m polykv.evals.work
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from polykv.errors import PolyKVError
from polykv.evals.campaign import Outcome
from polykv.evals.overview import measure

KINDS: dict[str, Callable[[dict[str, Any]], Outcome]] = {"overview": measure}


def perform(kind: str, settings: dict[str, Any]) -> Outcome:
    """The outcome of a task; {"error": text} for what a user can mend."""
    try:
        return KINDS[kind](settings)
    except PolyKVError as e:
        return {"error": str(e)}


def main() -> None:
    """One task."""
    task = json.load(sys.stdin)
    print(json.dumps(perform(task["kind"], task["settings"])))


if __name__ == "__main__":
    main()
