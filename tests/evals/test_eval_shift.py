"""`polykv eval shift`: what counts as counting, what makes it void, what wrong positions do, campaigns, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_path

from polykv.cli import run as cli
from polykv.evals.campaign import Outcome, Task
from polykv.evals.executor import LocalProcesses
from polykv.evals.report import html, markdown
from polykv.evals.result import Result
from polykv.evals.shift import MOVED, PROMPT, as_fresh, below, count_text, counted, fitted, invalid, passes, verdict
from polykv.evals.shift_run import DAMAGES, measure
from polykv.evals.tables import tables
from polykv.evals.work import perform

MODEL = str(tiny_path("llama"))


def settings(**other: Any) -> dict[str, Any]:
    """A context of 128 tokens, most of which the prompt takes."""
    shared = {"model": MODEL, "backend": "cpu", "threads": 1, "activations": "f32", "kv": "q8_0/turbo3", "role": "arm"}
    sizes = {"ctx": 128, "keep": 4, "last": 20, "tokens": 120, "codebooks": [], "damage": None}
    sizes |= {"calibration": None, "calibration_v": None}
    return {**shared, **sizes, **other}


def cell(text: str = " 41, 42, 43, 44, 45", **other: Any) -> dict[str, Any]:
    """A cell as it is measured, of a prompt that counts to 40; sound unless said otherwise."""
    facts = {"kv": "f16", "role": "arm", "self_test": False, "ctx": 256, "prompt": 150, "generated": 180, "shifts": 1}
    figures = {"shifted_cells": 126, "before": 2, "fresh": True, "fresh_tokens": 60, "moved": 0.0, "exact": []}
    return {**facts, **figures, **counted(text, 40), **other}


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (" 41, 42, 43, 4", (41, 3, 3, 3, 1, True)),
        (" 41, 42, 43", (41, 2, 2, 2, 1, True)),
        (" 42, 43, 44, ", (42, 3, 0, 3, 1, False)),
        (" 41, 42, 42, 43, 44, ", (41, 5, 2, 3, 2, False)),
        (" 41, 43, 44, 45, ", (41, 4, 1, 3, 1, False)),
        (" 41\n42 and 43.", (41, 3, 3, 3, 1, True)),
        ("no numbers", (None, 0, 0, 0, 0, False)),
        ("", (None, 0, 0, 0, 0, False)),
        ("41", (None, 0, 0, 0, 0, False)),
        (f" 41, {'9' * 5000}, 43, ", (41, 3, 1, 1, 1, False)),
    ],
)
def test_what_counts_as_counting(text: str, figures: tuple[Any, ...]) -> None:
    assert tuple(counted(text, 40).values()) == figures


def test_prompts_fill_their_part_of_the_context() -> None:
    for context in (64, 100, 8192):
        last = fitted(context, len)
        assert len(count_text(last)) <= PROMPT * context < len(count_text(last + 1))
    assert fitted(64, lambda text: 1000) == 0


def test_a_verdict_needs_a_shift_that_counts_and_is_as_a_fresh_prompt() -> None:
    sound, stuck = cell(), cell(" 41, 42, 43, 43, 43, ")
    moved, other = cell(moved=2 * MOVED), cell(fresh=False)
    assert passes(sound) and not any(map(passes, (stuck, moved, other)))
    assert invalid([sound, stuck, moved]) == [] and below([sound]) == []
    assert [verdict(c, sound) for c in (sound, stuck, moved, other)] == ["PASS", "FAIL", "FAIL", "FAIL"]
    assert below([sound, stuck | {"kv": "turbo2"}]) == [
        "turbo2 counts 3 of 5 numbers right and stumbles after the shift, as a fresh prompt of the kept tokens does"
    ]
    (reason,) = below([sound, moved | {"kv": "q8_0"}])
    assert reason.startswith("q8_0 does not go on after the shift as after a fresh prompt")


def test_a_control_that_cannot_count_gives_no_data() -> None:
    lost, arm = cell(" 41, 50, 51, ", before=3), cell(kv="q8_0")
    assert [verdict(c, lost) for c in (lost, arm | lost, arm)] == ["NO DATA", "NO DATA", "PASS"]
    assert below([lost, lost | {"kv": "turbo2"}]) == []
    (reason,) = invalid([lost, arm])
    assert "f16 counts 1 of 3 numbers right and stumbles before the shift" in reason
    # What is wrong without any counting is a failure all the same.
    broken = lost | {"kv": "turbo2", "moved": 3.0}
    assert verdict(broken, lost) == "FAIL" and len(below([lost, broken])) == 1


def test_void_results() -> None:
    none = cell(" 41, 42, ", shifts=0, fresh=None, moved=None)
    assert "no shift happened" in invalid([none])[0] and verdict(none, none) == "NO DATA" and below([none, none]) == []
    assert "nothing was written after" in invalid([cell(fresh=None, moved=None)])[0]
    assert "does not go on" in invalid([cell(moved=1.0)])[0]
    assert "the gate passes a run with keys one off" in invalid([cell(), cell(kv="keys one off", self_test=True)])[0]
    assert below([cell(), cell(" 1, ", self_test=True)]) == []
    assert invalid([cell(), cell(exact=["codes nothing"])]) == ["codes nothing"]
    failed = {"kv": "q8_0", "ctx": 256, "role": "arm", "error": "out of memory"}
    assert invalid([cell(), failed]) == ["q8_0 was not measured: out of memory"]
    assert verdict(failed, cell()) == "NOT MEASURED" and below([cell(), failed]) == below([failed, cell()]) == []


@pytest.mark.parametrize("kv", ["f16", "q8_0/turbo3", "turbo4+c/turbo3,sink=4"])
def test_after_a_shift_all_is_as_after_a_fresh_prompt(kv: str) -> None:
    found = measure(settings(kv=kv, tokens=160))
    assert found["shifts"] == 2 and found["shifted_cells"] == 2 * 62 and found["fresh_tokens"] == 62
    assert found["fresh"] and found["moved"] == 0 and not found["counts"]


def test_the_reference_measures_the_same() -> None:
    mine, theirs = (measure(settings(kv="f16", backend=b, threads=t)) for b, t in (("cpu", 1), ("ref", None)))
    assert mine["text"] == theirs["text"] and theirs["fresh"] and theirs["moved"] < MOVED


@pytest.mark.parametrize("damage", DAMAGES)
def test_wrong_positions_after_a_shift_are_seen(damage: str) -> None:
    found = measure(settings(kv="f16", damage=damage))
    assert found["moved"] > MOVED and not passes(found | {"counts": True})
    assert found["self_test"] and found["kv"] == damage


@pytest.mark.parametrize(("tokens", "shifts", "moved"), [(5, 0, None), (80, 1, 0.0)])
def test_an_answer_may_end_before_a_shift_or_soon_after(tokens: int, shifts: int, moved: float | None) -> None:
    found = measure(settings(tokens=tokens))
    assert (found["shifts"], found["moved"], found["generated"]) == (shifts, moved, tokens)
    alone = measure(settings(tokens=128 - found["prompt"] + 1))
    assert (alone["shifts"], alone["moved"], alone["fresh_tokens"]) == (1, None, 0)


def test_a_real_model_counts_across_a_shift(smollm2_path: Path) -> None:
    real = settings(model=str(smollm2_path), ctx=200, last=29, tokens=140, threads=None)
    sound, damaged = measure(real), measure(real | {"kv": "f16", "damage": "keys not turned"})
    assert passes(sound) and 0 < sound["before"] < sound["integers"], sound
    assert not passes(damaged) and not damaged["counts"] and damaged["in_row"] < sound["in_row"]


ARGS = ("eval", "shift", "-m", MODEL, "--ctx", "96", "--threads", "1", "--json")


def ask(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], str]:
    code = cli([*ARGS, *args])
    out = capsys.readouterr()
    return code, json.loads(out.out.splitlines()[-1]) if out.out.strip() else {}, out.out + out.err


class Recorded:
    """Stands in for processes: sound cells, but for what a test says of a type."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **cells: dict[str, Any]) -> None:
        self.tasks: list[Task] = []
        recorded = self

        def run(self: LocalProcesses, tasks: list[Task]) -> Iterator[tuple[Task, Outcome]]:
            recorded.tasks += tasks
            for task in tasks:
                s = task.settings
                kv = s["damage"] or s["kv"]
                facts = {"kv": kv, "role": s["role"], "self_test": s["damage"] is not None, "stamp": {"backend": "cpu"}}
                wrong = {"moved": 5.0} if s["damage"] else {}
                yield task, cells.get(kv) or cell(**facts, **wrong)

        monkeypatch.setattr(LocalProcesses, "run", run)


def test_the_command_with_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A random model cannot count: void, and said so; nothing is measured twice."""
    paths = {name: tmp_path / f"x.{name}" for name in ("json", "html", "md", "store")}
    args = ("--kv", "q8_0", "--out", str(paths["json"]), "--html", str(paths["html"]), "--markdown", str(paths["md"]))
    code, result, text = ask(capsys, *args, "--store", str(paths["store"]))
    assert code == 3, text
    assert [(c["kv"], c["role"]) for c in result["cells"]] == [("f16", "control"), ("q8_0", "arm")]
    assert all(c["shifts"] == 1 and c["fresh"] and c["moved"] == 0 and not c["counts"] for c in result["cells"])
    assert result["verdict"] == "invalid" and len(result["reasons"]) == 1 and "NO DATA" in text
    assert "f16 counts 0 of" in text and "that says nothing about a shift" in text
    assert Result.load(paths["json"]).to_json() == result and result["stamp"]["model"]["file"] == Path(MODEL).name
    assert str(tmp_path) not in paths["json"].read_text() and MODEL not in paths["json"].read_text()
    assert "Counting across a context shift" in paths["html"].read_text()
    assert "NO DATA" in paths["md"].read_text()
    before = paths["store"].read_text()
    code, again, _ = ask(capsys, "--kv", "q8_0", "--store", str(paths["store"]))
    assert code == 3 and again["cells"] == result["cells"] and paths["store"].read_text() == before


def test_exit_codes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = cell(" 41, 41, 41, ", kv="turbo2")
    recorded = Recorded(monkeypatch, turbo2=stuck)
    code, result, text = ask(capsys, "--kv", "q8_0", "--self-test")
    assert code == 0 and result["verdict"] == "ok", text
    assert [c["kv"] for c in result["cells"]] == ["f16", "q8_0", *DAMAGES]
    code, result, text = ask(capsys, "--kv", "f16", "--kv", "turbo2")
    assert code == 1 and result["verdict"] == "below floor" and "turbo2 counts 1 of 3" in text
    assert [c["role"] for c in result["cells"]] == ["arm", "arm"]
    assert recorded.tasks[0].settings["last"] == result["settings"]["last"] > 5
    Recorded(monkeypatch, turbo2=stuck, f16=stuck | {"kv": "f16"})
    code, result, text = ask(capsys, "--kv", "turbo2")
    assert code == 3 and [r.split()[0] for r in result["reasons"]] == ["f16"]
    monkeypatch.setattr("polykv.evals.shift.MOVED", 10.0)
    Recorded(monkeypatch)
    code, result, text = ask(capsys, "--kv", "q8_0", "--self-test")
    assert code == 3 and result["reasons"] == [f"the gate passes a run with {d}" for d in DAMAGES]
    Recorded(monkeypatch, f16={"error": "no memory"})
    code, _, text = ask(capsys, "--kv", "q8_0")
    assert code == 3 and "f16 was not measured: no memory" in text and "NOT MEASURED" in text


def test_reports_of_what_failed() -> None:
    cells = [cell(), {"kv": "<b>", "ctx": 256, "role": "arm", "error": "x"}, cell(kv="keys one off", moved=9.0)]
    result = Result("shift", {}, {"last": 40, "ctx": 256, "keep": 4}, cells)
    (table,) = tables(result)
    assert [row[1] for row in table.rows] == ["PASS", "NOT MEASURED", "FAIL"]
    assert "&lt;b&gt;" in html(result) and "&lt;b&gt;" in markdown(result)


def test_settings_decide_what_a_store_knows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = Recorded(monkeypatch)
    for args in ((), ("--keep", "5"), ("--tokens", "90"), ("--count-to", "9"), ("--activations", "q8")):
        ask(capsys, "--kv", "f16", *args)
    assert len({t.key for t in recorded.tasks}) == len(recorded.tasks) == 5
    other = recorded.tasks[0].settings | {"model": str(tiny_path("gemma3"))}
    assert "is found here under that name" in perform("shift", other)["error"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--ctx", "63"), "63 is not in the range"),
        (("--ctx", "5000"), "outside 2..4,096"),
        (("--keep", "95"), "at most half"),
        (("--keep", "-1"), "not in the range"),
        (("--count-to", "60"), "does not fit into a context of 96"),
        (("--tokens", "0"), "not in the range"),
        (("--kv", "q9_0"), "unknown K/V type"),
        (("--base", "nonsense"), "unknown K/V type"),
        (("--self-test", "--base", "f16,sink=4"), "--self-test"),
        (("--backend", "ref"), "no threads"),
        (("--cluster", "local", "--workers", "2"), "--workers"),
        (("--store", "/no/such/folder/x"), "cannot be written"),
        (("--out", "/no/such/folder/x"), "cannot be written"),
        (("--codebook", "/no/such/file"), "none of the types"),
        (("-m", "/no/such/model"), "/no/such/model"),
    ],
)
def test_refusals_before_a_process_is_started(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalProcesses, "run", None)
    code, _, text = ask(capsys, *args)
    assert code == 2 and message in text, text


def test_the_default_context_is_that_of_the_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    assert cli(["eval", "shift", "-m", MODEL, "--kv", "f16"]) == 0
    s = recorded.tasks[0].settings
    assert (s["ctx"], s["keep"], s["tokens"]) == (4096, 4, 3000) and s["last"] > 300
    assert "counting on from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("backend", "moved", "fresh", "gap", "want"),
    [
        ("cpu", 0.0, True, 0.0, True),
        ("cpu", 0.1, True, 0.0, False),
        ("cpu", 0.0, False, 0.1, False),
        ("cuda", 0.1, True, 0.0, True),
        ("cuda", 0.1, False, 0.1, True),
        ("cuda", 0.1, False, 0.6, False),
        ("cuda", 0.1, False, None, False),
        ("cuda", 4.0, True, 0.0, False),
    ],
)
def test_limits_of_backends(backend: str, moved: float, fresh: bool, gap: float | None, want: bool) -> None:
    """Only cuda has any for tokens; a wrong position is far beyond them."""
    assert as_fresh({"backend": backend, "moved": moved, "fresh": fresh, "gap": gap}) is want
