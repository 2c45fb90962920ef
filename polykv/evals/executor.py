"""Tasks in processes of this machine: each in a new one, so that none sees what another left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from threading import Lock

from polykv.evals.campaign import Outcome, Task

# Lines of a failed process that are worth showing.
TAIL = 3
# The program of a process. Modules are found where this process finds them: `python -m` would look into the current
# folder first, where a file of the user's may have the name of a module.
START = "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); from polykv.evals.work import main; main()"


class LocalProcesses:
    """workers: processes at a time; measurements of speed want 1. limit: seconds that a task may take."""

    def __init__(self, workers: int = 1, limit: float = 3600.0) -> None:
        self._workers, self._limit = workers, limit
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = Lock()
        self._closed = False

    def run(self, tasks: list[Task]) -> Generator[tuple[Task, Outcome], None, None]:
        """See `Executor`. Interrupted, it ends the processes that are running."""
        with ThreadPoolExecutor(self._workers) as pool:
            waiting = {pool.submit(self._perform, task): task for task in tasks}
            try:
                while waiting:
                    ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in ready:
                        yield waiting.pop(future), future.result()
            finally:
                # Ctrl-C, or the caller had enough.
                self._closed = bool(waiting)
                for future in waiting:
                    future.cancel()
                with self._lock:
                    for process in self._running:
                        process.kill()

    def _perform(self, task: Task) -> Outcome:
        command = [sys.executable, "-P", "-c", START]
        told = {"kind": task.kind, "settings": task.settings, "parent": os.getpid()}
        with self._lock:
            if self._closed:
                return {"error": "cancelled"}
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
            self._running.add(process)
        try:
            out, err = process.communicate(f"{json.dumps(sys.path)}\n{json.dumps(told)}", self._limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"error": f"took longer than {self._limit:g} s"}
        finally:
            with self._lock:
                self._running.discard(process)
        return read_outcome(process.returncode, out, err)


def read_outcome(code: int, out: str, err: str) -> Outcome:
    """The outcome that a worker printed as its last line, or why there is none.

    >>> read_outcome(-9, "", "Traceback\\nMemoryError")
    {'error': 'the process ended with -9: Traceback; MemoryError'}
    """
    lines = out.splitlines()
    try:
        found = json.loads(lines[-1]) if code == 0 and lines else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    return {"error": f"the process ended with {code}: {'; '.join(err.strip().splitlines()[-TAIL:]) or 'no output'}"}
