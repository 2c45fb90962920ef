"""Tasks on several K/V types: the same samples for each, cells with figures, and whether they say anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from polykv.errors import ConfigError
from polykv.evals.answers import Answer, counter, run
from polykv.evals.cells import Marks, compared, whole
from polykv.evals.counting import VACUOUS
from polykv.evals.fit import check_fit, samples
from polykv.evals.kept import NOWHERE, Kept
from polykv.evals.result import Cell
from polykv.evals.sample import Sample, Task
from polykv.evals.scoring import RULES, against
from polykv.llm import LLM

# Fewer samples than that, and one answer moves a score by more than ten points; MRCR's scores need more to mean much.
FEW, FEW_REWRITES = 10, 50


@dataclass(frozen=True)
class Suite:
    """grid: tasks, each with a length in tokens. n: samples of each. seed: of all of them."""

    grid: tuple[tuple[Task, int], ...]
    n: int
    seed: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"{self.n} samples; at least one is needed")
        if not self.grid:
            raise ConfigError("no task and length to run")

    @property
    def longest(self) -> int:
        """The context that all of it needs."""
        return max(length for _, length in self.grid)

    def samples(self, llm: LLM) -> list[list[Sample]]:
        """Of every part of the grid. Raises ConfigError where one does not fit into its length, or a length not into
        the context."""
        if self.longest > llm.context:
            raise ConfigError(f"a length of {self.longest:,} tokens is beyond the context of {llm.context:,}")
        count = counter(llm)
        check_fit(self.grid, n=self.n, seed=self.seed, count=count)
        return [samples(task, length=length, n=self.n, seed=self.seed, count=count) for task, length in self.grid]

    def remarks(self) -> list[str]:
        """What has to be known about figures of so few samples."""
        found = []
        if self.n < FEW:
            found.append(f"n = {self.n}: one answer moves a score by {100 / self.n:.0f} points; see the intervals")
        if self.n < FEW_REWRITES and any(task.metric == "sequence_matcher" for task, _ in self.grid):
            found.append(f"n = {self.n}: similarity scores vary much, compare them with {FEW_REWRITES} or more")
        return found


@dataclass
class Arms:
    """Answers of one arm after the other; the first is the control of the others."""

    suite: Suite
    cells: list[Cell] = field(default_factory=list)
    _samples: list[list[Sample]] = field(default_factory=list)
    _control: list[Marks] = field(default_factory=list)

    def prepare(self, llm: LLM) -> None:
        """Make the samples, which are the same for all arms. Raises ConfigError where they do not fit."""
        if not self._samples:
            self._samples = self.suite.samples(llm)

    def add(
        self,
        kv: str,
        llm: LLM,
        *,
        time_limit: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        kept: Kept = NOWHERE,
    ) -> list[Cell]:
        """Run everything on a model whose cache has the types `kv`; the cells of this arm. kept: of `answers.run`."""
        self.prepare(llm)
        total, done, new = sum(map(len, self._samples)), 0, list[Cell]()
        first = not self._control
        for i, (group, (task, _)) in enumerate(zip(self._samples, self.suite.grid, strict=True)):

            def tell(n: int, _: int, before: int = done) -> None:
                if on_progress:
                    on_progress(before + n, total)

            answers = run(llm, group, time_limit=time_limit, on_progress=tell, kept=kept)
            marks = self._marks(task, answers, i, first)
            cell = whole(kv, task.metric, answers, marks)
            if first:
                self._control.append(marks)
            else:
                cell["against"] = {"kv": self.cells[0]["kv"], **compared(self._control[i], marks)}
            new.append(cell)
            done += len(group)
        self.cells += new
        return new

    def _marks(self, task: Task, answers: Seq[Answer], i: int, first: bool) -> Marks:
        rule = RULES[task.metric]
        marks = [rule(a.text, a.sample) if a.data else None for a in answers]
        if task.metric != "longest_run":
            return marks
        control = marks if first else self._control[i]
        # What the control did not answer there is nothing to compare with.
        return [m and c and against(m, c) for m, c in zip(marks, control, strict=True)]


def objections(cells: Seq[Cell]) -> list[str]:
    """Why the figures of these cells mean nothing; none if they do. The first arm is the control."""
    found = [f"{_where(c)}: no data, every answer was empty or ran out of time" for c in cells if not c["n"]]
    control = [c for c in cells if c["kv"] == cells[0]["kv"]]
    for c in control:
        run = c["figures"].get("run", VACUOUS)
        if run < VACUOUS:
            numbers = f"{run:.3g} number{'s' * (run != 1)}"
            found.append(f"{_where(c)}: the control counts {numbers}, too few to compare with (at least {VACUOUS})")
    if len(control) < len(cells) and not any(c["score"] for c in control):
        found.append(f"{control[0]['kv']} scores 0 everywhere: what the other types lose cannot be seen")
    return found


def blind(cells: Seq[Cell]) -> list[str]:
    """Rows of the first arm that score 0, so that nothing can be lost there, when there are others to compare."""
    control = [c for c in cells if c["kv"] == cells[0]["kv"]]
    if len(control) == len(cells):
        return []
    return [f"{_where(c)} scores 0: that says nothing about the other types" for c in control if c["score"] == 0]


def shortfalls(cells: Iterable[Cell], floor: float | None) -> list[str]:
    """Cells whose score is below a floor, 0 to 100."""
    if floor is None:
        return []
    low = [c for c in cells if c["score"] is not None and c["score"] < floor]
    return [f"{_where(c)}: {c['score']:g} is below the floor of {floor:g}" for c in low]


def settings(suite: Suite, remarks: list[str], **more: Any) -> dict[str, Any]:
    """What makes the samples, and what has to be known about the figures, for a result."""
    grid = [f"{task.name} at {length:,}" for task, length in suite.grid]
    return {"grid": grid, "samples": suite.n, "seed": suite.seed, "remarks": remarks, **more}


def _where(cell: Cell) -> str:
    return f"{cell['kv']}, {cell['task']} at {cell['length']:,}"
