"""What one rendering of a chat template may cost: steps, characters produced, processor time.

Templates come with model files, from anybody. Jinja's sandbox keeps them away from the process, but lets them run and
grow without end; every operation of `template_sandbox` that loops or produces a value is charged here before it runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from jinja2 import Undefined

from polykv.errors import FormatError

MAX_STEPS = 100_000
MAX_UNITS = 2_000_000
MAX_SECONDS = 0.5
# A list cell, in characters: about what its object costs in memory.
CELL = 8


class BudgetError(FormatError):
    """A template does more than a chat template has reason to."""

    def __init__(self, reason: str) -> None:
        super().__init__("chat template", "", reason)


class Budget:
    """Counters of one rendering. `allowance`: characters of the messages; a template may copy them some times."""

    def __init__(self, allowance: int = 0) -> None:
        self._steps = self._all_steps = MAX_STEPS + allowance
        self._units = self._all_units = MAX_UNITS + 16 * allowance
        # Time of this thread, so that a busy machine does not make a good template fail.
        self._seconds, self._last, self._longest = MAX_SECONDS + 1e-7 * allowance, time.thread_time(), 0.0

    def step(self) -> None:
        """Charge one iteration, call or comparison."""
        self._steps -= 1
        if self._steps < 0:
            raise BudgetError(f"stopped after {self._all_steps:,} steps: it loops without end or nearly so")
        # The longest time between two steps is not counted: Python may collect the garbage of the whole program there,
        # which takes half a second in a large one and is no fault of the template.
        now = time.thread_time()
        passed, self._last = now - self._last, now
        if passed > self._longest:
            passed, self._longest = self._longest, passed
        self._seconds -= passed
        if self._seconds < 0:
            raise BudgetError(f"stopped after {MAX_SECONDS} s of processor time")

    def charge(self, units: int) -> None:
        """Charge a step that produces `units` characters (or as much memory)."""
        self.step()
        self._units -= units
        if self._units < 0:
            raise BudgetError(f"stopped after producing {self._all_units:,} characters")

    def size(self, value: object) -> int:
        """Characters that `value` has when it is written out. Only plain data has a size.

        A list that holds one value twice counts it twice: written out, or compared, it costs that much.
        """
        total, todo = 0, [value]
        while todo:
            v = todo.pop()
            if isinstance(v, str | bytes):
                total += len(v)
            elif isinstance(v, dict):
                todo.extend(v.keys())
                todo.extend(v.values())
            elif isinstance(v, list | tuple | set | frozenset):
                todo.extend(v)
            elif isinstance(v, int) and not isinstance(v, bool):
                # Digits, not more than bits.
                total += v.bit_length() if v.bit_length() > 64 else 0
            elif not (v is None or isinstance(v, bool | float | Undefined | range)):
                raise BudgetError(f"cannot write out or store a value of type {type(v).__name__}")
            total += CELL
            if total + CELL * len(todo) > self._units:
                raise BudgetError(f"stopped after producing {self._all_units:,} characters")
        return total

    def checked(self, value: object) -> object:
        """Charge a new value by its size and return it. Iterators pass: their elements are charged one by one."""
        if isinstance(value, Iterator):
            self.step()
        else:
            self.charge(self.size(value))
        return value
