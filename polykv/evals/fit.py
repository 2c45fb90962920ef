"""How much filling fits into a length, and the samples of that length.

The search is RULER's: estimate tokens per unit from one sample, look for the largest size by bisection up to three
times the estimate, and make single samples that turn out too long smaller by a step (here a twentieth of the size at
most, then twice that, and so on). It ends for any way of counting: the bounds of the bisection only come closer, a size
only becomes smaller, and below the smallest an error is raised.
"""

from __future__ import annotations

from collections.abc import Iterable

from polykv.counted import counted
from polykv.errors import ConfigError
from polykv.evals.sample import Count, Draft, Sample, Task


def samples(task: Task, *, length: int, n: int, seed: int, count: Count) -> list[Sample]:
    """Samples 0..n-1 of a task, each of which takes at most `length` tokens with its answer.

    Raises ConfigError when not even the smallest ones fit.
    """
    # First, so that the length that is asked for instead does for all samples.
    check_fit([(task, length)], n=n, seed=seed, count=count)
    size = largest(task, length, seed, count)
    return [fitted(task, length, size, seed, i, count) for i in range(n)]


def check_fit(grid: Iterable[tuple[Task, int]], *, n: int, seed: int, count: Count) -> None:
    """Raise ConfigError when the smallest form of a sample does not fit into its length; it asks for a length that does
    for all samples of all tasks of the grid."""
    short = []
    for task, length in grid:
        smallest = max(_tokens(task.draft(seed, i, task.least), count) for i in range(n))
        if smallest + task.budget > length:
            short.append((smallest + task.budget, task, length))
    if short:
        needed, task, length = max(short, key=lambda s: s[0])
        raise _too_long(task, length, needed - task.budget)


def _too_long(task: Task, length: int, tokens: int) -> ConfigError:
    room = f"{counted(length, 'token')}: the smallest prompt takes {tokens:,} and the answer may take {task.budget:,}"
    return ConfigError(f"{task.name} does not fit into {room}; take a length of {tokens + task.budget:,} or more")


def largest(task: Task, length: int, seed: int, count: Count) -> int:
    """The largest size at which sample 0 fits, as far as bisection can tell; at least `task.least`."""
    step, least = max(1, task.step(length)), task.least
    tokens = max(1, _tokens(task.draft(seed, 0, max(step, least)), count))
    estimate = length * max(step, least) // tokens
    # No unit is shorter than a token: this bounds the text that a wrong estimate can ask for.
    low, high, found = least, min(max(3 * estimate, 2 * step), max(length, least)), least
    while low <= high:
        middle = (low + high) // 2
        if _tokens(task.draft(seed, 0, middle), count) + task.budget <= length:
            found, low = middle, middle + 1
        else:
            high = middle - 1
    return found


def fitted(task: Task, length: int, size: int, seed: int, index: int, count: Count) -> Sample:
    """Sample `index` with `size` units, or as many steps fewer as make it fit.

    Raises ConfigError when the smallest one does not fit.
    """
    size = max(size, task.least)
    step = max(1, min(task.step(length), size // 20))
    while True:
        draft = task.draft(seed, index, size)
        tokens = _tokens(draft, count)
        if tokens + task.budget <= length:
            break
        if size == task.least:
            raise _too_long(task, length, tokens)
        size, step = max(size - step, task.least), 2 * step
    return Sample(task.name, seed, index, size, length, task.budget, tokens, depths(draft, count), draft)


def depths(draft: Draft, count: Count) -> tuple[float, ...]:
    """Where the expected texts stand between the ends of the filling, 0 to 1: by tokens, or by characters of the
    history."""
    if draft.history:
        sizes = [len(content) for _, content in draft.history]
        return tuple(sum(sizes[:i]) / sum(sizes) for i in draft.at)
    start, end = draft.span or (0, len(draft.prompt))
    # A template adds the same to every part; a turn must not be empty.
    first, last = (count(draft.prompt[: max(1, i)], raw=draft.raw) for i in (start, end))
    before = [count(draft.prompt[: max(1, i)], raw=draft.raw) - first for i in draft.at]
    return tuple(min(1.0, max(0.0, n / max(1, last - first))) for n in before)


def _tokens(draft: Draft, count: Count) -> int:
    return count(draft.prompt, draft.prefix, draft.history, draft.raw)
