"""What README.md and docs/TOUR.md show works: Python runs, command lines parse, the transcript is what `ask` prints."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import click
import pytest
from tiny_models import tiny_path

import polykv
from polykv import cli
from polykv.commands.ask import DEFAULT_AGENTS, shipped_questions
from polykv.ops import OPERATIONS

README = (Path(__file__).parent.parent / "README.md").read_text()
LINES = re.findall(r"^    polykv (.+?)(?:  +#.*)?$", README, re.M)


def test_the_library_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    Path("report.txt").write_text("A report about nothing. " * 20)
    load = functools.partial(polykv.load, str(tiny_path("llama")))
    monkeypatch.setattr(polykv, "load", lambda name, **options: load(**options), raising=False)
    exec(compile(code[1], "README.md", "exec"), {})
    assert Path("report.pool").stat().st_size > 0


def test_the_tour_is_true() -> None:
    """Its Python runs, and every file that it names exists."""
    root = Path(__file__).parent.parent
    tour = (root / "docs" / "TOUR.md").read_text()
    code = re.search(r"```python\n(.*?)```", tour, re.S)
    assert code is not None
    exec(compile(code[1], "TOUR.md", "exec"), {})
    for line in tour.splitlines():
        fast = root / "polykv" / "fast" / "cpu"
        ref, _, twin = line.partition("` | `") if line.startswith("| `ref/") else (line, "", "")
        for name in re.findall(r"[\w/*]+\.py\b", ref):
            assert list(root.glob(name)) or list((root / "polykv").glob(name)) or list(fast.glob(name)), name
        for name in re.findall(r"[\w*]+\.py\b", twin):
            assert list(fast.glob(name)), name


@pytest.mark.parametrize("line", LINES)
def test_command_lines_parse(line: str) -> None:
    name, *args = shlex.split(line)
    command = cli.group.get_command(click.Context(cli.group), name)
    assert command is not None
    # Parsing raises for an option that does not exist; nothing is run.
    command.make_context(name, args).close()


def test_common_options_exist() -> None:
    command = cli.group.get_command(click.Context(cli.group), "ask")
    assert command is not None
    known = {o for p in command.params for o in p.opts}
    sentence = README.partition("Common options:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(--?[a-z]+)", sentence)) <= known


def test_transcript_matches_the_shipped_questions() -> None:
    transcript = README.partition("$ make run")[2].partition("```")[0]
    for i, item in enumerate(shipped_questions()[:DEFAULT_AGENTS], 1):
        assert f"agent {i}  {item['question']}" in transcript
        assert item["answer"] in transcript


def test_the_architecture_counts_the_operations() -> None:
    text = (Path(__file__).parent.parent / "docs" / "ARCHITECTURE.md").read_text()
    assert f": {len(OPERATIONS)} operations, each a" in text


def test_every_command_is_shown() -> None:
    assert {line.split()[0] for line in LINES} == set(cli.COMMANDS) - {"pull"}
