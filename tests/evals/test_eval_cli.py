"""`polykv eval ppl`, `kld`, `logits`: what a user sees, exit codes, results on disk, refusals before any work."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import click
import pytest
from tiny_models import tiny_path

from polykv.cli import COMMANDS, run
from polykv.commands.eval import KINDS
from polykv.commands.eval_overview import DEFAULT
from polykv.commands.numbers import Number
from polykv.errors import FormatError
from polykv.evals.result import Result, Verdict

MODEL = str(tiny_path("llama"))
TEXT = "Light is a stream of small bodies, or it is a wave; nobody could tell which it was. "


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 40)
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict, str]:
    code = run(["eval", *args, "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out.splitlines()[-1]) if out.out.strip() else {}, out.out + out.err


KLD = ("kld", "-m", MODEL, "--ctx", "64", "--max-ppl", "1e9")


def test_kld(capsys: pytest.CaptureFixture[str], corpus: str, tmp_path: Path) -> None:
    out = tmp_path / "kld.json"
    kvs = ("--kv", "f16", "--kv", "turbo3")
    code, result, text = ask(capsys, *KLD, "--corpus", corpus, *kvs, "--out", str(out))
    assert code == 0, text
    assert [c["kv"] for c in result["cells"]] == ["q8_0", "f16", "turbo3"]  # the control comes along
    control, exact, coarse = result["cells"]
    assert exact["kld"] == 0 and exact["same_top"] == 1
    assert 0 < control["kld"] < coarse["kld"] and coarse["positions"] == 31 * result["settings"]["windows"]
    assert result["stamp"]["model"]["file"] == Path(MODEL).name and result["verdict"] == "ok"
    assert Result.load(out).to_json() == result
    assert str(tmp_path) not in json.dumps(result["stamp"])
    # Token by token: other shapes of the same kernels, the same figures.
    _, again, _ = ask(capsys, *KLD, "--corpus", corpus, *kvs, "--decode")
    assert [c["kld"] for c in again["cells"]] == [c["kld"] for c in result["cells"]]


def test_floors(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    args = (*KLD, "--corpus", corpus, "--kv", "turbo2", "--floor", "kld=1e-9", "--floor", "same_top=0")
    code, result, text = ask(capsys, *args)
    assert code == 1 and result["verdict"] == "below floor" and "BELOW FLOOR: turbo2: kld is" in text
    # The control is not judged by the user's floors.
    assert len(result["reasons"]) == 1
    assert ask(capsys, *KLD, "--corpus", corpus, "--kv", "turbo2", "--floor", "same_top=1")[0] == 1


def test_void_results(capsys: pytest.CaptureFixture[str], corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("--corpus", corpus, "--kv", "f16")
    code, result, text = ask(capsys, "kld", "-m", MODEL, "--ctx", "64", *args)
    assert code == 3 and "does not know such texts" in text and result["verdict"] == "invalid"
    monkeypatch.setattr("polykv.evals.overview_judge.CONTROL_KLD", -1.0)
    code, _, text = ask(capsys, *KLD, *args)
    assert code == 3 and "the control q8_0" in text
    assert ask(capsys, *KLD, *args, "--no-control")[0] == 0
    assert "nothing is controlled" in ask(capsys, *KLD, *args, "--base", "q8_0")[2]


def test_types_that_code_nothing_are_not_measured(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    """Windows and prompts shorter than a unit are exact: a divergence of 0 would say nothing about the type."""
    code, _, text = ask(capsys, *KLD, "--corpus", corpus, "--kv", "turbo3+c/turbo3,sink=4")
    assert code == 3 and "turbo3+c/turbo3,sink=4 codes nothing within 63 tokens" in text
    longer = ("kld", "-m", MODEL, "--ctx", "130", "--max-ppl", "1e9", "--corpus", corpus, "--no-control")
    assert ask(capsys, *longer, "--kv", "turbo3+c/turbo3")[0] == 0
    assert ask(capsys, *longer, "--kv", "turbo3,recent=200,0=f16")[0] == 3
    # Exact types are measured as such, whatever else they ask for.
    assert ask(capsys, *longer, "--kv", "f16,recent=200")[0] == 0


def test_one_pair_that_ruins_the_model_says_nothing_about_the_text(
    capsys: pytest.CaptureFixture[str], corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polykv.evals import perplexity

    true = perplexity.score
    monkeypatch.setattr(
        perplexity, "score", lambda w, arm, *rest: true(w, arm, *rest) * (500 if arm.name == "turbo2" else 1)
    )
    args = ("ppl", "-m", MODEL, "--ctx", "64", "--max-ppl", "1e9", "--corpus", corpus, "--kv", "turbo2")
    code, result, text = ask(capsys, *args, "--kv", "f16")
    assert code == 3 and result["reasons"] == ["turbo2: ppl is not a finite number"], text
    assert result["cells"][0]["ppl"] is None


def test_what_is_no_number_is_below_a_floor() -> None:
    from polykv.commands.eval_options import below

    cell = {"kv": "x", "kld": float("nan"), "same_top": float("nan")}
    assert len(below([cell], {"kld": 1.0, "same_top": 0.0}, frozenset({"same_top"}))) == 2


def test_prompts_of_a_file_may_be_longer_than_those_that_are_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([{"prompt": TEXT * 12}]))
    args = ("logits", "-m", MODEL, "--prompts", str(path), "--tokens", "2")
    assert ask(capsys, *args, "--kv", "f16", "--length", "100000")[0] == 0
    code, _, text = ask(capsys, *args, "--kv", "f16", "--self-test", "--base", "f16,sink=4")
    assert code == 2 and "--self-test" in text


def test_settings_tell_what_was_read(capsys: pytest.CaptureFixture[str], corpus: str, tmp_path: Path) -> None:
    """Results are passed on: no folders; two texts, or calibrations, of one name are told apart."""
    factors = tmp_path / "k.tiq"
    assert run(["calibrate", "-m", MODEL, corpus, "-o", str(factors), "--tokens", "256"]) == 0
    capsys.readouterr()
    args = (*KLD, "--corpus", corpus, "--kv", "turbo3")
    _, plain, _ = ask(capsys, *args)
    _, used, _ = ask(capsys, *args, "--calibration", str(factors), "--no-control")
    _, both, _ = ask(capsys, *args, "--calibration", str(factors), "--calibration-v", str(factors))
    Path(corpus).write_text(TEXT[::-1] * 40)
    _, other, _ = ask(capsys, *args)
    assert plain["settings"]["corpus"] == "text.txt" and plain["settings"]["calibration"] is None
    assert used["settings"]["calibration"].startswith("k.tiq (") and used["settings"]["no_control"]
    assert both["settings"]["calibration_v"] == used["settings"]["calibration"]
    assert plain["cells"][1]["kld"] != used["cells"][0]["kld"] != both["cells"][1]["kld"]
    assert plain["settings"]["text"] == used["settings"]["text"] != other["settings"]["text"]
    assert str(tmp_path) not in json.dumps([plain, used])


def test_ppl(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    args = ("ppl", "-m", MODEL, "--ctx", "64", "--max-ppl", "1e9", "--corpus", corpus, "--kv", "f16", "--kv", "q8_0")
    code, result, _ = ask(capsys, *args)
    _, other, _ = ask(capsys, *KLD, "--corpus", corpus, "--kv", "f16", "--kv", "q8_0")
    assert code == 0
    for a, b in zip(result["cells"], other["cells"], strict=True):
        assert a["ppl"] == pytest.approx(b["ppl"], rel=1e-6)
    assert ask(capsys, *args, "--max-ppl", "2")[0] == 3


def test_logits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([{"prompt": TEXT}, {"prompt": "Who was it?", "answer": "Newton"}]))
    args = ("logits", "-m", MODEL, "--prompts", str(prompts), "--tokens", "8", "--length", "120")
    code, result, text = ask(capsys, *args, "--kv", "f16", "--kv", "q8_0", "--self-test")
    assert code == 0, text
    assert [c["kv"] for c in result["cells"] if not c["self_test"]] == ["f16", "q8_0"]
    assert result["cells"][0]["mean_tv"] == 0 and not any(c["passes"] for c in result["cells"] if c["self_test"])
    assert len(result["cells"]) == 6 and "as it should" in text
    code, result, _ = ask(capsys, *args, "--kv", "turbo2", "--equal")
    assert code == 1 and result["reasons"] == ["turbo2 fails"]
    code, result, _ = ask(capsys, *args, "--kv", "f16", "--free")
    assert code == 0 and result["settings"]["free"]


def test_answers_that_are_cut_off_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polykv.evals import gate

    real = gate.summary
    monkeypatch.setattr(gate, "summary", lambda *a: real(*a) | {"recall_mismatch": 2, "cap_limited": 2})
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([{"prompt": TEXT}]))
    args = ("logits", "-m", MODEL, "--prompts", str(prompts), "--tokens", "3", "--kv", "q8_0", "--self-test")
    _, result, text = ask(capsys, *args)
    assert [n for n in result["notes"] if "cut off by --tokens" in n] == gate.cut_off(result["cells"][:1])
    assert "q8_0: of 2 answers" in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("kld", "--floor", "speed=1"), "NAME=VALUE"),
        (("kld", "--floor", "kld=fast"), "NAME=VALUE"),
        (("kld", "--floor", "kld=nan"), "NAME=VALUE"),
        (("kld", "--floor", "ln_ppl_ratio=-inf"), "NAME=VALUE"),
        (("kld", "--floor", "kld=-0.1"), "kld is 0 or more"),
        (("kld", "--floor", "same_top=95"), "same_top is from 0 to 1"),
        (("ppl", "--max-ppl", "nan"), "nan is not a finite number"),
        (("ppl", "--max-ppl", "inf"), "inf is not a finite number"),
        (("logits", "--bar", "nan"), "nan is not a finite number"),
        (("logits", "--margin", "inf"), "inf is not a finite number"),
        (("kld", "--kv", "q9_0"), "unknown K/V type"),
        (("kld", "--out", "/no/such/folder/x.json"), "cannot be written: No such file"),
        (("kld", "--corpus", "/no/such/text"), "cannot be read"),
        (("kld", "--ctx", "1000000"), "outside 2.."),
        (("kld", "--calibration", "/no/such/file"), "file"),
        (("kld", "--codebook", "{short}", "--kv", "f16"), "none of the types"),
        (("logits", "--prompts", "/no/such/file"), "cannot be read"),
        (("logits", "--length", "100", "--n", "2", "--corpus", "{short}"), "too short"),
        (("ppl", "--corpus", "{short}"), "windows of 64 need 128 or more"),
        (("ppl", "--windows", "1"), "fewer than 100"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    size = () if args[0] == "logits" else ("--ctx", "64")
    code, _, text = ask(capsys, args[0], "-m", MODEL, *size, *[a.format(short=short) for a in args[1:]])
    assert code == 2 and message in text, text


@pytest.mark.parametrize("text", ["[]", "{", '[{"prompt": 3}]', '[{"answer": "x"}]', "[1]", '{"prompt": "x"}'])
def test_bad_prompt_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(text)
    code, _, said = ask(capsys, "logits", "-m", MODEL, "--prompts", str(path))
    assert code == 2 and "prompts.json" in said


def test_numbers_of_options_are_finite() -> None:
    """Of every command: a range of click's own lets nan through."""
    found = []
    for module, attribute in [*((m, "command") for m, _ in COMMANDS.values()), *((m, a) for m, a, _ in KINDS.values())]:
        found += getattr(import_module(f"polykv.commands.{module}"), attribute).params
    numbers = [p for p in found if isinstance(p.type, click.types.FloatParamType)]
    assert len(numbers) > 10 and [p.name for p in numbers if not isinstance(p.type, Number)] == []


def test_tables_in_a_pipe_are_not_folded(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    wide = "q8_0/turbo3,0=f16,1=turbo4/turbo2"
    _, _, text = ask(capsys, *KLD, "--corpus", corpus, "--kv", wide, "--windows", "4")
    (line,) = [line for line in text.splitlines() if wide in line and "\u2502" in line]
    assert line.count("\u2502") == 11 and len(line) > 120
    assert "bits: codes per value; held: all bytes at the end of a window per value of f16\n" in text


def test_one_is_no_plural(capsys: pytest.CaptureFixture[str], corpus: str) -> None:
    args = ("-m", MODEL, "--ctx", "256", "--windows", "1", "--corpus", corpus, "--max-ppl", "1e9", "--kv", "f16")
    assert "1 window of 256 tokens, 127 positions" in ask(capsys, "ppl", *args)[2]
    _, _, text = ask(capsys, "logits", *args[:2], *args[-2:], "--n", "1", "--length", "200", "--tokens", "1")
    assert "1 prompt, 1 position" in text


def test_every_kind_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        assert run(["eval", kind, "--help"]) == 0
        assert len(capsys.readouterr().out.splitlines()) > 5
    assert run(["eval"]) == 0
    capsys.readouterr()
    # Defaults are those of the kind.
    assert run(["eval", "overview", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(kv in said for kv in DEFAULT)


@pytest.mark.parametrize(
    "value",
    [
        "[]",
        "{}",
        '{"format": 2, "kind": "kld"}',
        '{"format": 1, "kind": "kld", "stamp": {}, "settings": {}, "cells": [1], "verdict": "ok", "reasons": []}',
        '{"format": 1, "kind": "kld", "stamp": {}, "settings": {}, "cells": [], "verdict": "fine", "reasons": []}',
        "[" * 100000,
        "\x00",
    ],
)
def test_foreign_results_are_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(value)
    with pytest.raises(FormatError):
        Result.load(path)


def test_results_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    good = Result("kld", {}, {}, [{"kv": "f16", "kld": float("inf")}])
    good.save(path)
    assert Result.load(path).cells == [{"kv": "f16", "kld": None}]
    before = path.read_text()
    with pytest.raises(TypeError):
        Result("kld", {}, {}, [{"kv": object()}]).save(path)
    assert path.read_text() == before and [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert Result("kld", {}, {}, []).judge(["a"], ["b"]).verdict is Verdict.INVALID
