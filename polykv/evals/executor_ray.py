"""Tasks on the machines of a Ray cluster: the same tasks and outcomes, each in a process of its own there."""

from __future__ import annotations

import logging
import socket
from collections.abc import Generator
from typing import Any

from polykv.errors import ConfigError
from polykv.evals.campaign import Outcome, Task

SECONDS = 5.0


class RayCluster:
    """address: of the cluster; "local" starts one on this machine. cpus: cores that a task takes; by default those of
    the smallest machine, so that no two tasks of a campaign slow each other down on machines that are alike.

    The model must be found on every machine: a name of the catalogue, hf:org/repo, or a path that all have. Raises
    ConfigError when Ray is not installed or the cluster does not answer.
    """

    def __init__(self, address: str = "local", cpus: int | None = None, limit: float = 3600.0) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError("--cluster needs Ray: pip install ray") from None
        self._ray, self._limit = ray, limit
        _reach(address)
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, ValueError) as e:
                raise ConfigError(f"--cluster {address}: {e}") from None
        nodes: Any = ray.nodes
        self._cpus = _least_cpus(nodes()) if cpus is None else cpus

    def run(self, tasks: list[Task]) -> Generator[tuple[Task, Outcome], None, None]:
        """See `Executor`."""
        ray = self._ray
        remote = ray.remote(num_cpus=self._cpus, max_retries=0)(_perform)
        waiting = {remote.remote(task.kind, task.settings, self._limit): task for task in tasks}
        try:
            while waiting:
                (ref,), _ = ray.wait(list(waiting), num_returns=1)
                task = waiting.pop(ref)
                try:
                    yield task, ray.get(ref)
                except ray.exceptions.RayError as e:
                    yield task, {"error": str(e).strip().splitlines()[-1]}
        finally:
            for ref in waiting:
                ray.cancel(ref, force=True)


def _least_cpus(nodes: list[dict[str, Any]]) -> int:
    """Cores of the smallest machine that has any and is alive, at least one."""
    sizes = [int(n["Resources"].get("CPU", 0)) for n in nodes if n["Alive"]]
    return max(1, min((s for s in sizes if s), default=1))


def _reach(address: str) -> None:
    """Raise ConfigError unless something listens at host:port. Ray itself waits for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except (OSError, ValueError) as e:
        raise ConfigError(f"--cluster {address}: no answer ({e})") from None


def _perform(kind: str, settings: dict[str, object], limit: float) -> Outcome:
    """In a process of its own, as on one machine: Ray's own workers are used again and again."""
    from polykv.evals.executor import LocalProcesses

    ((_, outcome),) = LocalProcesses(limit=limit).run([Task(kind, settings)])
    return outcome
