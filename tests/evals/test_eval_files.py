"""Files of results: refused before any work, never written over something else, and no result lost with them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tiny_models import tiny_path

from polykv.cli import run
from polykv.errors import ConfigError, FormatError
from polykv.evals.files import check_apart
from polykv.evals.result import Result

MODEL = str(tiny_path("llama"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Light is a stream of small bodies, or it is a wave. " * 60)
    return path


def kld(corpus: Path, *args: str) -> int:
    return run(["eval", "kld", "-m", MODEL, "--ctx", "64", "--max-ppl", "1e9", "--corpus", str(corpus), *args])


def test_no_file_is_written_over_another_that_is_named(tmp_path: Path, corpus: Path) -> None:
    check_apart({"--out": tmp_path / "a", "--html": tmp_path / "b"}, {"--model": str(tmp_path / "c")})
    with pytest.raises(ConfigError, match="--out and --html"):
        check_apart({"--out": tmp_path / "a", "--html": tmp_path / "." / "a"}, {})
    before = corpus.read_text()
    assert kld(corpus, "--out", str(corpus)) == 2
    assert corpus.read_text() == before
    result = tmp_path / "r.json"
    Result("new", {}, {}, [{"kv": "f16"}]).save(result)
    assert run(["eval", "report", str(result), "--html", str(result)]) == 2
    assert Result.load(result).kind == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run(["eval", "report", str(result), "--html", str(pipe)]) == 2 and not pipe.is_file()


def test_a_result_that_cannot_be_kept_is_printed(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Result, path: Path) -> None:
        raise FormatError(path, "", "cannot be written: No space left on device")

    monkeypatch.setattr(Result, "save", full)
    assert kld(corpus, "--json", "--out", str(tmp_path / "x.json")) == 2
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["kind"] == "kld" and "No space left" in said.err


def test_names_of_files_may_have_bytes_that_are_no_text(tmp_path: Path, corpus: Path) -> None:
    strange, out = tmp_path / os.fsdecode(b"t\xff.txt"), tmp_path / "x.json"
    corpus.rename(strange)
    assert kld(strange, "--out", str(out)) == 0
    assert "\\udcff" in Result.load(out).settings["corpus"]
    files = ["--html", str(tmp_path / "x.html"), "--markdown", str(tmp_path / "x.md")]
    assert run(["eval", "report", str(out), *files]) == 0
