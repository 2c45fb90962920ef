"""A killed campaign goes on where it was, for every kind: the same figures to the bit, nothing measured twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_path

from polykv.cli import run
from polykv.evals.campaign import Task
from polykv.evals.store import Store
from polykv.model.runner import Runner

MODEL = str(tiny_path("llama"))
CORPUS = " ".join(f"Sentence {i} of this text has some words." for i in range(400))
KVS = ("--kv", "f16", "--kv", "turbo3")
# kind -> (options, cells that it keeps)
KINDS: dict[str, tuple[tuple[str, ...], int]] = {
    "ppl": (("--ctx", "64", "--windows", "4", "--max-ppl", "1e9"), 8),
    "kld": (("--ctx", "64", "--windows", "4", "--max-ppl", "1e9"), 12),
    "logits": (("--n", "2", "--length", "200", "--tokens", "4"), 3),
    "niah": (("--tasks", "niah_single_1,niah_single_2", "--lengths", "800", "--samples", "2"), 8),
    "vt": (("--lengths", "1900", "--samples", "2"), 4),
    "mrcr": (("--lengths", "1900", "--samples", "2"), 4),
    "countup": (("--tokens", "30", "--samples", "3"), 6),
    "copy": (("--tasks", "copy_id", "--lengths", "900", "--samples", "3"), 6),
}


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(CORPUS)
    return str(path)


def arguments(kind: str, corpus: str, *more: str) -> list[str]:
    reads = ("--corpus", corpus) if kind in ("ppl", "kld", "logits", "niah", "copy") else ()
    return ["eval", kind, "-m", MODEL, *KVS, *reads, *KINDS[kind][0], "--json", *more]


def ask(capsys: pytest.CaptureFixture[str], args: list[str]) -> tuple[int, dict[str, Any], str]:
    code = run(args)
    out = capsys.readouterr()
    lines = out.out.splitlines()
    return code, untimed(json.loads(lines[-1])) if lines and lines[-1].startswith("{") else {}, out.err


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in ("seconds", "date")}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_campaign_goes_on(
    kind: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cells = tmp_path / "store.jsonl", KINDS[kind][1]
    code, whole, _ = ask(capsys, arguments(kind, corpus))
    assert whole
    args = arguments(kind, corpus, "--store", str(path))
    add = Store.add

    def interrupt(self: Store, *args: Any) -> None:
        add(self, *args)
        if len(self) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(Store, "add", interrupt)
        assert ask(capsys, args)[0] == 130
    assert len(lines(path)) == 2
    assert ask(capsys, args)[:2] == (code, whole)
    assert len(lines(path)) == cells
    # Everything is there: nothing runs.
    with monkeypatch.context() as m:
        m.setattr(Runner, "step", None)
        assert ask(capsys, args)[:2] == (code, whole)
    # Damage is told, and what is lost measured again.
    good = lines(path)
    entry = json.loads(good[1])
    entry["outcome"]["damaged"] = 1
    path.write_bytes(b"\n".join([good[0], json.dumps(entry).encode(), *good[2:], b""]))
    code, again, said = ask(capsys, args)
    assert again == whole and f"{path}: damaged at line 2: what was kept there is measured again" in said
    assert len(lines(path)) == cells + 1 and json.loads(lines(path)[-1])["key"] == entry["key"]


@pytest.mark.parametrize("kind", KINDS)
def test_other_settings_are_other_cells(
    kind: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.jsonl"
    # One sample of each task is enough to tell settings apart.
    few = ("--samples", "1") if "--samples" in KINDS[kind][0] else ()
    store = (*few, "--store", str(path))
    assert ask(capsys, arguments(kind, corpus, *store))[1]
    first = len(lines(path))
    assert first >= 2
    others: list[list[str]] = [["--activations", "q8"], ["--kv", "turbo4"], ["-m", str(tiny_path("llama", "q8_0"))]]
    if kind in ("ppl", "kld"):
        others += [["--ctx", "72"], ["--decode"]]
    if kind in ("kld", "logits"):
        others += [["--base", "q8_0"]]
    if kind not in ("ppl", "kld", "countup"):
        others += [["--seed", "5"]]
    if kind == "logits":
        others += [["--free"], ["--margin", "0.1"], ["--equal"], ["--bar", "0.3"], ["--tokens", "5"]]
    for other in others:
        code, fresh, _ = ask(capsys, arguments(kind, corpus, *other, *few))
        assert ask(capsys, arguments(kind, corpus, *other, *store))[:2] == (code, fresh), other
    keys = [json.loads(line)["key"] for line in lines(path)]
    assert len(set(keys)) == len(keys) > first + len(others) - 1
    # Another program, or another machine, measures for itself.
    monkeypatch.setattr("polykv.evals.kept.made_by", lambda: {"polykv": "another"})
    ask(capsys, arguments(kind, corpus, *store))
    assert len(lines(path)) == len(keys) + first


def test_a_killed_campaign_goes_on(corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store.jsonl"
    args = arguments("kld", corpus, "--store", str(path), "--windows", "40")
    process = subprocess.Popen([sys.executable, "-m", "polykv", *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not (path.exists() and len(lines(path)) >= 2):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    kept = path.read_bytes()
    kept = kept[: kept.rindex(b"\n") + 1]
    _, found, _ = ask(capsys, args)
    assert path.read_bytes().startswith(kept)
    assert found == ask(capsys, arguments("kld", corpus, "--windows", "40"))[1]


@pytest.mark.parametrize("kind", [*KINDS, "overview"])
def test_another_file_is_no_store(
    kind: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("shopping list\n")
    monkeypatch.setattr(Runner, "step", None)
    options = KINDS[kind][0] if kind in KINDS else ("--ctx", "128", "--length", "200")
    code, _, said = ask(capsys, ["eval", kind, "-m", MODEL, *KVS, *options, "--store", str(path)])
    assert code == 2 and "notes.txt: line 1: not an entry of a campaign" in said
    assert path.read_text() == "shopping list\n"


def test_answers_that_ran_out_of_time_are_asked_for_again(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.jsonl"
    args = arguments("niah", corpus, "--store", str(path), "--time-limit", "1e-9")
    assert ask(capsys, args)[0] == 3
    assert not path.read_bytes()


def test_damaged_lines_stay_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    store = Store(path)
    for i in range(3):
        store.add(Task("x", {"i": i}), {"value": i})
    good = lines(path)
    path.write_bytes(good[0] + b"\n\xff\x00" + good[1] + b"\n" + good[2] + b"\nno line end")
    again = Store(path)
    assert len(again) == 2 and again.damaged == [2, 4] and again.get(Task("x", {"i": 1})) is None
    again.add(Task("x", {"i": 1}), {"value": 1})
    assert lines(path)[-1] == good[1] and len(Store(path)) == 3
    # A key that is not of its settings, a sum that is not of its outcome.
    for old, new in ((b'"i": 0', b'"i": 9'), (b'"value": 0', b'"value": 9')):
        path.write_bytes(b"\n".join([good[0].replace(old, new), good[1], b""]))
        assert Store(path).damaged == [1] and len(Store(path)) == 1
