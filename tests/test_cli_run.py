"""Commands that run a model, on a tiny one whose answers are noise: what they print, keep, count and refuse."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_path

import polykv
from polykv import cli
from polykv.commands import options
from polykv.commands.compiling import Compiling
from polykv.commands.output import Output

TINY = str(tiny_path("llama"))
DOCUMENT = "The cat sat on the mat. " * 20


@pytest.fixture
def document(tmp_path: Path) -> str:
    path = tmp_path / "document.txt"
    path.write_text(DOCUMENT)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """The JSON object of a command that must succeed."""
    code = cli.run([*args, "--json", "-m", TINY])
    out, err = capsys.readouterr()
    assert code == 0, err
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return {**result, "printed": out, "err": err}


def ask(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    return run(capsys, "ask", *args, "-n", "6", "-q", "Who sat?", "-q", "Where?", "-q", "Why?")


def test_ask_prints_answers_and_cost(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, document, "--report")
    assert got["report"]["bytes"]["kv_used"] == got["pool"]["bytes_total"]
    assert len(got["answers"]) == 3
    pool = got["pool"]
    assert pool["kv"] == "q8_0/turbo3"
    assert pool["prefix_tokens"] > 20
    assert len(pool["bytes_private"]) == len(pool["bytes_f16_per_agent"]) == 3
    assert 0 < pool["bytes_shared"] < pool["bytes_f16_per_agent"][0]
    assert set(got["timing"]) >= {"prefill_tok_s", "decode_tok_s"}
    assert all(value.startswith("polykv.fast.cpu") for value in got["ops"].values())
    assert "3 separate f16 caches" in got["printed"]
    assert sum("activations q8 has no effect" in note for note in got["notes"]) == 1
    notes = [line.removeprefix("polykv: note: ") for line in got["err"].splitlines() if "note: " in line]
    assert notes == got["notes"]
    others = [line for line in got["err"].splitlines() if "compil" not in line and "note: " not in line]
    assert others == ["polykv: answer of agents 1, 2, 3 cut at 6 tokens: -n sets the longest answer"]


def test_compiling_while_the_model_is_loaded_is_no_time_of_reading(
    document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_model(values: dict[str, Any], out: Output, compiling: Compiling) -> polykv.LLM:
        llm = options.open_model(values, out, compiling)
        compiling.seconds += 1000
        return llm

    monkeypatch.setattr("polykv.commands.ask.open_model", open_model)
    timing = ask(capsys, document)["timing"]
    assert timing["compile_s"] >= 1000
    assert timing["prefill_s"] > 0


def test_ask_equals_the_library(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    got = ask(capsys, document, "--seed", "7", "--temperature", "0.9")
    llm = polykv.load(TINY)
    with llm.pool(DOCUMENT.strip()) as pool:
        want = pool.ask(["Who sat?", "Where?", "Why?"], max_tokens=6, seed=7, temperature=0.9)
    assert [g["tokens"] for g in got["generations"]] == [g.tokens for g in want]


def test_ask_reads_standard_input(
    document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    want = ask(capsys, document)["generations"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + DOCUMENT.encode())))
    assert [g["tokens"] for g in ask(capsys, "-")["generations"]] == [g["tokens"] for g in want]


@pytest.mark.parametrize(
    "kv", ["q8_0/turbo3", "turbo8/turbo2_tcq", "turbo3_tcq/iq4_nl", "q6_0/turbo4,0=q5_1", "bf16/q5_0,-1=q4_1/turbo2"]
)
def test_a_saved_pool_gives_the_same_answers(
    kv: str, document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "kept.pool")
    want = ask(capsys, document, "--save", file, "--kv", kv)
    got = ask(capsys, "--pool", file, "--kv", kv)
    assert [g["tokens"] for g in got["generations"]] == [g["tokens"] for g in want["generations"]]
    assert got["pool"]["bytes_shared"] == want["pool"]["bytes_shared"]
    assert "loaded from a file" in got["printed"]
    code = cli.run(["ask", "--pool", file, "-m", TINY, "--kv", "f16", "-q", "Who?"])
    err = capsys.readouterr().err
    assert code == 2
    assert "tier" in err and "f16/f16" in err and (kv in err or "," in kv)


def test_generate(capsys: pytest.CaptureFixture[str]) -> None:
    got = run(capsys, "generate", "The cat", "--raw", "-n", "5", "--report")
    want = polykv.load(TINY).generate("The cat", raw=True, max_tokens=5)
    assert got["tokens"] == want.tokens
    assert got["text"] in got["printed"]
    assert got["report"]["calls"]["layers"] > 0
    assert got["stats"]["generated_n"] == len(want.tokens)


def test_it_is_said_why_an_answer_was_cut(capsys: pytest.CaptureFixture[str]) -> None:
    got = run(capsys, "generate", "The cat", "--raw", "-n", "5")
    assert "answer cut at 5 tokens: -n sets" in got["err"]
    got = run(capsys, "generate", "The cat", "--raw", "-n", "50", "--ctx", "9")
    assert got["finish_reason"] == "context"
    assert "the context is full" in got["err"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), (">&-", 0), ("2>&-", 0)])
def test_closed_streams(closed: str, code: int) -> None:
    python = f"'{sys.executable}' -c 'from polykv.cli import main; main()'"
    line = f"{python} ask - -q Who -n 1 --backend ref -m '{TINY}' {closed}"
    done = subprocess.run(["sh", "-c", line], input=DOCUMENT.encode(), capture_output=True)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    line = f"'{sys.executable}' -c 'from polykv.cli import main; main()' tiers > /dev/full"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "polykv: error: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("stream", ["2> /dev/full", "2>&1 >&3 | true"])
def test_remarks_that_nobody_can_read_cost_no_answer(stream: str) -> None:
    line = f"'{sys.executable}' -c 'from polykv.cli import main; main()' generate The -n 1 --raw -m '{TINY}' {stream}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; exec 3>&1; {line}"], capture_output=True)
    assert done.returncode == 0
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("ask", "DOC", "-q", "x", "--save", "/no/such/folder/pool"), "cannot be written"),
        (("ask", "DOC", "-q", "x", "--save", "/dev/null"), "not a regular file"),
        (("ask", "DOC", "-q", "x", "--temperature", "nan"), "nan is not a finite number"),
        (("generate", "x", "--top-p", "nan"), "nan is not a finite number"),
        (("generate", "x", "--stop", ""), "stop must be"),
        (("chat", "--seed", str(2**64)), "seed is"),
        (("calibrate", "DOC", "-o", "/no/such/folder/factors"), "cannot be written"),
        (("calibrate", "DOC", "-o", "factors", "--values", "/dev/null"), "not a regular file"),
    ],
)
def test_what_can_be_known_is_refused_before_a_model_is_opened(
    args: tuple[str, ...], why: str, document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.chdir(Path(document).parent)
    for name in ("polykv.llm.load", "polykv.llm.load_model", "polykv.calibrator.load_model"):
        monkeypatch.setattr(name, opened)
    assert cli.run([document if a == "DOC" else a for a in args]) == 2
    assert why in capsys.readouterr().err
    assert [p.name for p in Path(document).parent.iterdir()] == ["document.txt"]


def test_backends_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    got = run(capsys, "generate", "The cat", "--raw", "-n", "2", "--backend", "ref")
    assert all(value.startswith("polykv.ref") for value in got["ops"].values())


def chat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lines: str, *args: str) -> dict[str, Any]:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return run(capsys, "chat", "-n", "4", *args)


def test_chat_edits_and_retries(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plain = chat(capsys, monkeypatch, "one\nthree\n")["turns"]
    edited = chat(capsys, monkeypatch, "one\ntwo\n/edit three\n")["turns"]
    assert edited == plain
    assert [t["question"] for t in plain] == ["one", "three"]
    # Greedy: the same question gives the same answer, whatever was cut off before.
    assert chat(capsys, monkeypatch, "one\nthree\n/retry\n/retry\n")["turns"] == plain
    assert chat(capsys, monkeypatch, "one\n\nthree\ntwo\n/undo\n/quit\nnever\n")["turns"] == plain


def test_chat_retry_takes_another_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hot = ("--temperature", "5", "-n", "16")
    once = chat(capsys, monkeypatch, "one\n", *hot)["turns"]
    again = chat(capsys, monkeypatch, "one\n/retry\n", *hot)["turns"]
    assert len(once) == len(again) == 1
    assert once != again


def test_chat_survives_mistakes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    got = chat(capsys, monkeypatch, "/undo\n/retry\n/edit\n/nonsense\n/help\n/memory\n" + "x" * 40_000 + "\none\n")
    assert [t["question"] for t in got["turns"]] == ["one"]
    assert "no command /nonsense" in got["printed"]
    assert "polykv: error:" in got["err"]


def test_chat_about_a_document(
    document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    got = chat(capsys, monkeypatch, "Who?\n", "--doc", document)
    with polykv.load(TINY).pool(DOCUMENT.strip()) as pool:
        want = pool.ask(["Who?"], max_tokens=4)[0].text
    assert got["turns"][0]["answer"] == want


def test_interrupt_while_a_model_runs(
    document: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polykv.model.transformer.Transformer.hidden", interrupted)
    assert cli.run(["ask", document, "-m", TINY, "-q", "Who?"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_at_the_prompt() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from polykv.cli import main; main()", "chat", "-m", TINY, "--backend", "ref"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    child.stdin.write("/memory\n")
    child.stdin.flush()
    # Its answer shows that the loop is running and waits for the next line.
    assert "0 tokens" in child.stdout.readline()
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(30) == 130
    assert "Traceback" not in child.stderr.read()
    for pipe in (child.stdin, child.stdout, child.stderr):
        pipe.close()
