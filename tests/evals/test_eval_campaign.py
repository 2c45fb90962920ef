"""Campaigns: outcomes are kept and not measured twice, failures are outcomes, every executor gives the same figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_path

from polykv.cli import run as cli
from polykv.errors import ConfigError, FormatError
from polykv.evals.campaign import Outcome, Task, run
from polykv.evals.executor import LocalProcesses
from polykv.evals.loops import repeated
from polykv.evals.overview import measure
from polykv.evals.overview_judge import NO_RECALL, Role, control_reason, drift, invalid, relative, remarks, verdict
from polykv.evals.store import Store, alone
from polykv.evals.work import perform

MODEL = str(tiny_path("llama"))
# Timings differ from run to run; whatever else a cell has must not.
TIMED = {"prefill_tok_s", "decode_tok_s", "decode_runs", "seconds", "load_average", "stamp"}


def untimed(cell: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a process."""
    return {k: v for k, v in json.loads(json.dumps(cell)).items() if k not in TIMED}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(" ".join(f"Sentence {i} of this text has some words." for i in range(400)))
    return str(path)


def settings(corpus: str, kv: str = "q8_0/turbo3", **other: Any) -> dict[str, Any]:
    shared = {"model": MODEL, "backend": "cpu", "threads": 1, "base": "f16", "ctx": 128, "corpus": corpus, "windows": 2}
    gate = {"prompts": 2, "length": 200, "tokens": 6, "bar": 0.15, "seed": 0}
    return {
        **shared,
        **gate,
        "kv": kv,
        "role": Role.ARM,
        "codebooks": [],
        "calibration": None,
        "calibration_v": None,
        **other,
    }


class Here:
    """Runs tasks in this process, and counts them."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, tasks: list[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            self.ran.append(task.settings["name"])
            yield task, {"error": "broken"} if task.settings["name"] == "bad" else {"value": task.settings["name"]}


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    tasks = [Task("x", {"name": n}) for n in ("a", "bad", "b", "a")]
    first, second = Here(), Here()
    path = tmp_path / "store.jsonl"
    told: list[tuple[int, int]] = []
    found = run(tasks, first, Store(path), lambda done, total, text: told.append((done, total)))
    assert found == [{"value": "a"}, {"error": "broken"}, {"value": "b"}, {"value": "a"}]
    assert first.ran == ["a", "bad", "b"] and told[0] == (1, 4) and told[-1] == (4, 4)
    # What failed is tried again, the rest is known; a store belongs to settings, not to their order.
    assert run(tasks[::-1], second, Store(path)) == found[::-1]
    assert second.ran == ["bad"]
    assert Task("x", {"a": 1, "b": 2}).key == Task("x", {"b": 2, "a": 1}).key != Task("y", {"a": 1, "b": 2}).key


def test_a_store_survives_a_crash_but_takes_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    store = Store(path)
    store.add(Task("x", {"name": "a"}), {"value": 1})
    with path.open("a") as f:
        f.write('{"key": "cut o')
    again = Store(path)
    assert len(again) == 1
    again.add(Task("x", {"name": "b"}), {"value": 2})
    assert len(Store(path)) == 2
    other = tmp_path / "notes.txt"
    other.write_text("shopping list\n")
    with pytest.raises(FormatError, match="line 1"):
        Store(other)
    assert other.read_text() == "shopping list\n"


@pytest.mark.parametrize(
    "content",
    [b"shopping list", b'{"format": 1}', b"\xac\x00", b'{"key": "a", "outcome": 3}\n', b"[1]\n", b"\n", b"[" * 100000],
)
def test_no_other_file_becomes_a_store(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        Store(path)
    assert path.read_bytes() == content


def test_two_campaigns_do_not_share_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    with alone(path):
        with pytest.raises(ConfigError, match="another campaign"), alone(path):
            pass
        path.write_text('{"key": "cut o')
        Store(path).add(Task("x", {}), {"value": 1})
        with pytest.raises(ConfigError, match="another campaign"), alone(path):
            pass
    with alone(path):
        assert len(Store(path)) == 1


def test_an_outcome_that_cannot_be_kept_ends_the_campaign_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    here = Here()
    ended: list[bool] = []

    class Watched:
        def run(self, tasks: list[Task]) -> Iterator[tuple[Task, Outcome]]:
            try:
                yield from here.run(tasks)
            finally:
                ended.append(True)

    store = Store(path)
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be kept"):
        run([Task("x", {"name": n}) for n in ("a", "b")], Watched(), store)
    assert here.ran == ["a"] and ended == [True]


def test_workers_find_their_modules_where_the_caller_does(
    tmp_path: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizers.py").write_text('raise SystemExit("not that one")')
    monkeypatch.chdir(tmp_path)
    ((_, outcome),) = LocalProcesses().run([Task("overview", settings(corpus, kv="q9_0"))])
    assert "unknown K/V type" in outcome["error"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_campaign(corpus: str, how: int) -> None:
    args = ["eval", "overview", "-m", MODEL, "--corpus", corpus, "--ctx", "128", "--windows", "100", "--max-ppl", "1e9"]
    process = subprocess.Popen([sys.executable, "-m", "polykv", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    workers: list[str] = []
    while not workers:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
        ps = ["ps", "--ppid", str(process.pid), "-o", "pid="]
        workers = subprocess.run(ps, capture_output=True, text=True).stdout.split()
    # Long enough for the worker to have begun its watch.
    time.sleep(0.5)
    process.send_signal(how)
    process.communicate(timeout=60)
    while subprocess.run(["ps", "-p", ",".join(workers)], capture_output=True).returncode == 0:
        time.sleep(0.1)


def test_processes_give_what_this_process_gives(corpus: str) -> None:
    mine = measure(settings(corpus))
    ((_, theirs),) = LocalProcesses().run([Task("overview", settings(corpus))])
    assert untimed(theirs) == untimed(mine)
    assert mine["engaged"] and mine["tiers"] == ["q8_0/turbo3"] and mine["kld"] > 0
    assert mine["decode_tok_s"] > 0 and mine["prefill_tok_s"] > 0 and len(mine["decode_runs"]) == 3


def test_failures_are_outcomes(corpus: str) -> None:
    executor = LocalProcesses(workers=2)
    tasks = [Task("overview", settings(corpus, model="/no/such/model")), Task("nonsense", {})]
    found = {task.kind: outcome for task, outcome in executor.run(tasks)}
    assert "/no/such/model" in found["overview"]["error"]
    assert "KeyError" in found["nonsense"]["error"]
    assert "error" in perform("overview", settings(corpus, kv="q9_0"))
    ((_, slow),) = LocalProcesses(limit=0.01).run([Task("overview", settings(corpus))])
    assert "longer than" in slow["error"]


def test_an_interrupted_campaign_leaves_no_process_and_goes_on(tmp_path: Path, corpus: str) -> None:
    store, out = tmp_path / "store.jsonl", tmp_path / "out.json"
    args = ["eval", "overview", "-m", MODEL, "--corpus", corpus, "--ctx", "128", "--prompts", "2", "--length", "200"]
    args += ["--tokens", "6", "--max-ppl", "1e9", "--kv", "q8_0", "--store", str(store), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "polykv", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not (store.exists() and store.read_text().count("\n") >= 1):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"interrupted" in err
    done = store.read_text().count("\n")
    assert 1 <= done < 3
    assert cli(args) == 0
    assert store.read_text().count("\n") == 3
    cells = json.loads(out.read_text())["cells"]
    assert [c["role"] for c in cells] == ["first", "arm", "last"]


@pytest.mark.timeout(180)
def test_ray_gives_the_same_figures(corpus: str) -> None:
    """The same cells through a local Ray."""
    import ray

    from polykv.evals.executor_ray import RayCluster

    tasks = [Task("overview", settings(corpus)), Task("overview", settings(corpus, model="/no/such/model"))]
    try:
        executor = RayCluster("local")
        found = {t.settings["model"]: o for t, o in executor.run(tasks)}
    finally:
        ray.shutdown()
    assert untimed(found[MODEL]) == untimed(measure(settings(corpus)))
    assert "error" in found["/no/such/model"]


def test_a_task_has_a_machine_of_the_cluster_for_itself() -> None:
    from polykv.evals.executor_ray import _least_cpus

    nodes = [{"Alive": True, "Resources": {"CPU": 8.0}}, {"Alive": True, "Resources": {"CPU": 4.0}}]
    gone = {"Alive": False, "Resources": {"CPU": 2.0}}
    assert _least_cpus([*nodes, gone, {"Alive": True, "Resources": {}}]) == 4 and _least_cpus([gone]) == 1


def test_a_cluster_that_is_not_there() -> None:
    from polykv.evals.executor_ray import RayCluster

    with pytest.raises(ConfigError, match="--cluster"):
        RayCluster("127.0.0.1:9")


def cell(role: Role = Role.ARM, kv: str = "turbo3", **other: Any) -> dict[str, Any]:
    figures = {"kld": 0.0, "kld_max": 0.0, "mean_tv": 0.0, "ppl": 9.0, "base_ppl": 9.0, "same_top": 1.0, "trace": "t"}
    rest = {
        "stamp": {"machine": "m", "polykv": "1", "commit": "c", "date": "2026-01-01T00:00:00"},
        "base_recall": 1.0,
        "cap_limited": 0,
        "repeats": 0.0,
    }
    rest |= {"kld_error": 0.0, "kld_positions": 1000}
    rest |= {"base_trace": "t", "engaged": True, "tiers": [kv], "passes": True, "text_ppl": 2.0, "exact": []}
    sizes = {"decode_tok_s": 100.0, "prefill_tok_s": 1000.0, "kv_bytes": 10, "f16_bytes": 40}
    return {"kv": kv, "role": role, **figures, **rest, **sizes, **other}


FIRST, LAST = cell(Role.FIRST, "f16"), cell(Role.LAST, "f16")


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([FIRST, cell(), LAST], None),
        ([FIRST, cell(), LAST | {"trace": "u"}], "other figures at the end"),
        ([FIRST | {"kld_max": 1e-9}, cell(), LAST | {"kld_max": 1e-9}], "differs from itself"),
        ([FIRST, cell(base_trace="u"), LAST], "in another process"),
        ([FIRST, cell(Role.CONTROL, "q8_0", same_top=0.9), LAST], "the control q8_0"),
        ([FIRST, cell(kv="q8_0", kld=0.04), LAST], "the control q8_0"),
        ([FIRST | {"base_ppl": 101.0}, cell(), LAST], "does not know such texts"),
        ([FIRST, cell(kld=float("nan")), LAST], "kld is not a finite number"),
        ([FIRST, cell(exact=["turbo3+c codes nothing"]), LAST], "codes nothing"),
        ([FIRST | {"base_ppl": float("nan")}, cell(), LAST], "does not know such texts"),
        ([FIRST, cell(engaged=False), LAST], "the types that ran are"),
        ([FIRST, {"kv": "x", "role": Role.ARM, "error": "no memory"}, LAST], "was not measured: no memory"),
    ],
)
def test_what_makes_an_overview_void(cells: list[dict[str, Any]], reason: str | None) -> None:
    found = invalid(cells, 100.0)
    assert (not found) if reason is None else any(reason in text for text in found)


@pytest.mark.parametrize(
    ("same", "kld", "error", "positions", "fails", "chance"),
    [
        (0.97, 0.03, 0.0001, 4000, False, False),
        (0.96, 0.001, 0.0001, 4000, True, False),
        (0.969, 0.001, 0.0001, 4000, True, True),
        (0.95, 0.001, 0.0001, 100, True, True),  # 98 % of all may well be 95 of a hundred
        (0.90, 0.001, 0.0001, 100, True, False),
        (0.99, 0.04, 0.001, 4000, True, False),
        (0.99, 0.04, 0.01, 100, True, True),
        (0.99, float("nan"), 0.01, 100, True, False),
    ],
)
def test_the_control_has_a_bar(
    same: float, kld: float, error: float, positions: int, fails: bool, chance: bool
) -> None:
    found = control_reason({"same_top": same, "kld": kld, "kld_error": error}, positions)
    assert bool(found) == fails
    assert all(f"{positions:,} positions" in text and ("chance" in text) == chance for text in found)


def test_relative_figures_and_verdicts() -> None:
    cells = relative([FIRST | {"decode_tok_s": 80.0}, cell(decode_tok_s=150.0), LAST | {"decode_tok_s": 120.0}])
    assert cells[1]["decode_ratio"] == 1.5 and cells[1]["smaller"] == 4
    assert drift(cells) == pytest.approx(0.5)
    kinds = [cell(), cell(passes=False), cell(text_ppl=21.0), LAST]
    assert [verdict(c) for c in relative([FIRST, *kinds])] == ["PASS", "PASS", "FAIL", "INCOHERENT", "PASS"]
    # A model whose own texts are unlikely is measured with its own measure.
    poor = [c | {"text_ppl": 100.0} for c in (FIRST, cell(), LAST)]
    assert all(c["coherent"] for c in relative(poor))


def test_a_text_that_goes_round_is_nonsense_however_likely() -> None:
    round_ = cell(repeats=0.75, text_ppl=1.5)
    found = relative([FIRST, cell(repeats=0.4), round_, LAST])
    assert [verdict(c) for c in found] == ["PASS", "PASS", "INCOHERENT", "PASS"]
    assert found[2]["nonsense"] == "repeats itself: 75% of what it writes is the same few tokens"
    assert remarks(found) == []
    # The model does so with exact types, too.
    found = relative([FIRST | {"repeats": 0.6}, round_, LAST | {"repeats": 0.6}])
    assert all(c["coherent"] for c in found) and "exact run repeats itself" in remarks(found)[0]


def test_what_repeats() -> None:
    said = list(range(40))
    assert repeated(said) == repeated(said * 2) == repeated(said[:2]) == 0
    assert repeated([5] * 32) == repeated([5, 6] * 16) == repeated([5, 6, 7, 8] * 8) == 1
    # Twice is no circle, and a phrase of five tokens none that is looked for.
    assert repeated([1, 2, 1, 2, 9, 9]) == 0 and repeated([5, 6, 7, 8, 9] * 6) == 0
    assert repeated([*said[:8], *[3, 4] * 10, 1, 2, 3, 4]) == 20 / 32
    with_break = [7] * 10 + [8] + [7] * 21
    assert repeated(with_break) == 21 / 32


def test_remarks() -> None:
    stamp = FIRST["stamp"]
    assert remarks([FIRST, cell(), LAST]) == [] == remarks([])
    assert "25% slower at the end" in remarks([FIRST, LAST | {"decode_tok_s": 75.0}])[0]
    assert "differ in machine" in remarks([FIRST, cell(stamp=stamp | {"machine": "n"}), LAST])[0]
    assert "no anchor: turbo3" in remarks([FIRST, cell(stamp=stamp | {"date": "2026-01-02T00:00:00"}), LAST])[0]
    assert remarks([c | {"base_recall": 0.0} for c in (FIRST, cell(), LAST)]) == [NO_RECALL]
    assert "1 was cut off by --tokens" in remarks([FIRST, cell(recall_mismatch=2, cap_limited=1), LAST])[0]


def test_without_anchors_there_are_no_ratios() -> None:
    lost = {"kv": "f16", "error": "killed"}
    cells = relative([lost | {"role": Role.FIRST}, cell(), lost | {"role": Role.LAST}])
    assert verdict(cells[1]) == "PASS" and "decode_ratio" not in cells[1] and cells[1]["smaller"] == 4
    assert len(invalid(cells, 100.0)) == 2


OVERVIEW = ("eval", "overview", "-m", MODEL, "--length", "200", "--tokens", "6", "--prompts", "2", "--kv", "turbo3")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--ctx", "64"), "fewer than 100"),
        (("--ctx", "4090"), "outside"),
        (("--ctx", "128", "--length", "64"), "no room for the question"),
        (("--ctx", "128", "--calibration", "/no/such/file"), "/no/such/file"),
        (("--ctx", "128", "--codebook", "/no/such/file"), "none of the types"),
        (("--ctx", "128", "--kv", "turbo3_tcq", "--codebook", "/no/such/file"), "/no/such/file"),
        (("--ctx", "128", "--backend", "ref", "--threads", "2"), "no threads"),
        (("--ctx", "128", "--cluster", "local", "--workers", "2"), "--workers"),
        (("--ctx", "128", "--store", "/no/such/folder/x"), "cannot be written"),
    ],
)
def test_an_overview_refuses_before_it_starts_a_process(
    corpus: str,
    args: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LocalProcesses, "run", None)
    assert cli([*OVERVIEW, "--corpus", corpus, *args]) == 2
    assert message in capsys.readouterr().err


def test_a_store_belongs_to_what_names_stand_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another text under the same name is measured anew, and a machine that has another one says so."""
    path, text = tmp_path / "text.txt", " ".join(f"Sentence {i} of this text has some words." for i in range(400))
    asked: list[list[Task]] = []

    def refuse(self: LocalProcesses, tasks: list[Task]) -> Iterator[tuple[Task, Outcome]]:
        asked.append(tasks)
        yield from ((task, {"error": "not today"}) for task in tasks)

    monkeypatch.setattr(LocalProcesses, "run", refuse)
    for content in (text, text.replace("words", "letters")):
        path.write_text(content)
        assert cli([*OVERVIEW, "--corpus", str(path), "--ctx", "128"]) == 3
    first, second = asked
    assert len(first) == len(second) == 4 and {t.key for t in first}.isdisjoint(t.key for t in second)
    assert "is found here under that name" in perform("overview", first[0].settings)["error"]


def test_workers_end_with_their_campaign(corpus: str) -> None:
    """A caller that stops listening leaves nothing behind."""
    outcomes = LocalProcesses(workers=2).run([Task("overview", settings(corpus, seed=s)) for s in range(4)])
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert "polykv.evals.work" not in children
