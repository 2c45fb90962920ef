"""The command line without a model: table of commands, errors, exit codes, environment, output."""

from __future__ import annotations

import importlib
import io
import json
import re
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import click
import numba
import pytest
from case_base import HOSTS
from tiny_models import tiny_model, tiny_path

from polykv import cli
from polykv.cache.codecs import CODECS
from polykv.commands import options
from polykv.commands.compiling import Compiling
from polykv.commands.eval import KINDS
from polykv.commands.output import Output
from polykv.commands.streams import say
from polykv.doctor import State, examine
from polykv.errors import ConfigError, StrictError
from polykv.fast.cpu import limits
from polykv.printable import printable
from polykv.report import megabytes

TINY = str(tiny_path("llama"))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a command line run in this process."""
    code = cli.run(list(args))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: polykv {name}")
    assert err == ""
    command = importlib.import_module(f"polykv.commands.{cli.COMMANDS[name][0]}").command
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or parameter.opts


@pytest.mark.parametrize("name", ["ask", "generate", "chat"])
def test_help_says_how_long_answers_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, name, "--help")
    found = re.search(r"default (\d+) in ask, else (\d+)", " ".join(out.split()))
    assert found is not None
    module = importlib.import_module(f"polykv.commands.{name}")
    seen: list[int] = []

    def sampling(values: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        seen.append(max_tokens)
        raise ConfigError("seen")

    monkeypatch.setattr(module, "sampling", sampling)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    document = tmp_path / "document.txt"
    document.write_text("A short one.")
    given = {"ask": (str(document), "-q", "Who?"), "generate": ("Who?",), "chat": ()}[name]
    run(capsys, name, *given, "-m", TINY)
    assert seen == [int(found[1 if name == "ask" else 2])]


def test_table_is_complete() -> None:
    folder = Path(cli.__file__).parent / "commands"
    with_command = {p.stem for p in folder.glob("*.py") if "@click.command" in p.read_text()}
    assert with_command == {m for m, _ in cli.COMMANDS.values()} | {m for m, _, _ in KINDS.values()}


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys; from polykv import cli; cli.run(['--help']); print(sorted({'numpy', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["ask", "--temperature", "-1"], "--temperature"),
        (["ask", "--backend", "cuda"], "--backend"),
        (["ask", "--nonsense"], "--nonsense"),
        (["generate"], "PROMPT"),
        (["ask", "missing-file.txt", "-q", "Who?"], "missing-file.txt"),
        (["ask", "missing-file.txt"], "no question"),
        (["ask", "missing-file.txt", "-q", " "], "is empty"),
        (["ask", "missing-file.txt", "Who wrote it?"], "what is 'Who wrote it?'"),
        (["ask", "--pool", "b.pool", "--system", "Be brief.", "-q", "Who?"], "--system"),
        (["ask", "a.txt", "--pool", "b.pool", "-q", "Who?"], "not both"),
        (["tiers", "-m", "no-such-model"], "no-such-model"),
        (["plan", "-m", TINY, "--kv", "q8_0/turbo9"], "turbo9"),
        (["plan", "-m", TINY, "--kv", "q8_0,99=f16"], "99"),
        (["plan", "-m", TINY, "--ctx", "8", "--shared", "9"], "shared"),
        (["pull", "no-such-model"], "no-such-model"),
        (["pull", "hf:some/model"], "-m hf:some/model"),
        (["generate", "x", "-m", "no-such-model"], "no-such-model"),
        (["generate", "x", "-m", TINY, "--ctx", "1000000"], "1000000"),
    ],
)
def test_a_mistake_is_one_line(args: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("polykv: error: ")
    assert part in err
    assert err.count("\n") == 1


def test_a_bad_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad\x1b[31m.gguf"
    bad.write_bytes(b"GGUF" + bytes(60))
    for command in (["inspect", str(bad)], ["generate", "x", "-m", str(bad)], ["plan", "-m", str(bad)]):
        code, _, err = run(capsys, *command)
        assert code == 2
        assert err.startswith("polykv: error: ")
        # On a terminal, too, where nothing takes sequences out.
        assert "\x1b" not in err and "\\x1b[31m" in err


def test_documents_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin1.txt").write_bytes("Gebühr".encode("latin-1"))
    (tmp_path / "empty.txt").write_bytes(b" \n")
    assert "not UTF-8" in run(capsys, "ask", str(tmp_path / "latin1.txt"), "-q", "x")[2]
    assert "empty" in run(capsys, "ask", str(tmp_path / "empty.txt"), "-q", "x")[2]
    assert run(capsys, "ask", str(tmp_path), "-q", "x")[0] == 2
    for start, part in (
        (b"%PDF-1.4\n", "a PDF: extract its text first, for example with pdftotext"),
        (b"PK\x03\x04", "a zip archive: word processors write such files; save it as plain text"),
        (b"\x1f\x8b", "a gzip-compressed file: decompress it"),
        (b"GGUF\3\0\0\0", "a GGUF model file: -m takes it"),
        (b"\x80\2\0\0\0\0\0\0{", "a safetensors file: --pool takes"),
        (b"a\0b", "byte 1"),
    ):
        (tmp_path / "binary").write_bytes(start + b"all ASCII")
        assert part in run(capsys, "ask", str(tmp_path / "binary"), "-q", "x")[2]


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (click.Abort, 130)])
def test_interrupt(
    raised: type, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("polykv.doctor.examine", interrupted)
    got, out, err = run(capsys, "doctor")
    assert (got, out) == (code, "")
    assert "interrupted" in err


@pytest.mark.parametrize("said", ["the system has no 5 bytes left", ""])
def test_no_memory(said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def scarce(*_: object, **__: object) -> None:
        raise MemoryError(said)

    monkeypatch.setattr("polykv.doctor.examine", scarce)
    got, out, err = run(capsys, "doctor")
    assert (got, out) == (2, "")
    assert err == f"polykv: error: not enough memory: {said or 'the system gives no more'}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("where", ["polykv.doctor.examine", "polykv.commands.streams.say", "sys.exit", "gc"])
def test_an_impatient_interrupt(where: str) -> None:
    """Ctrl-C again, while the first one is answered or the process ends: no traceback from anywhere."""
    code = """
import signal, sys, polykv.cli as c, polykv.doctor, polykv.commands.streams
class Final:
    def __del__(self): raise KeyboardInterrupt
def interrupted(*_): raise KeyboardInterrupt
where = sys.argv[1]
if where == "gc":
    def interrupted(*_): Final(); raise KeyboardInterrupt
    where = "polykv.doctor.examine"
polykv.doctor.examine = interrupted
exec(f"{where} = interrupted")
sys.argv = ["polykv", "doctor"]
c.main()
"""
    done = subprocess.run([sys.executable, "-c", code, where], capture_output=True, text=True, timeout=60)
    assert done.returncode in (130, -signal.SIGINT)
    assert (done.stdout, done.stderr.strip()) in (("", ""), ("", "polykv: interrupted"))


def test_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POLYKV_MODEL", "from-the-environment")
    assert "from-the-environment" in run(capsys, "plan")[2]
    assert "from-the-option" in run(capsys, "plan", "-m", "from-the-option")[2]
    monkeypatch.setenv("POLYKV_BACKEND", "nonsense")
    assert "--backend" in run(capsys, "ask")[2]


def test_strict_turns_notes_into_errors(capsys: pytest.CaptureFixture[str]) -> None:
    class Llm:
        notes = ("something was ignored",)

    llm: Any = Llm()
    options.check_notes(llm, False, Output())
    assert capsys.readouterr().err == "polykv: note: something was ignored\n"
    with pytest.raises(StrictError, match="something was ignored") as caught:
        options.check_notes(llm, True, Output())
    assert caught.value.exit_code == 3


def test_compilation_is_announced_once_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    @numba.njit
    def inner(x: int) -> int:
        return x + 1

    @numba.njit
    def outer(x: int) -> int:
        return inner(x) * 2

    compiling = Compiling("cpu")
    with compiling:
        assert outer(1) == 4
    err = capsys.readouterr().err
    assert err.startswith("polykv: compiling CPU kernels, once")
    assert f"compiled {compiling.kernels} kernels" in err
    assert compiling.kernels >= 2
    first = compiling.seconds
    assert first > 0
    with compiling:
        outer(2)
    assert (capsys.readouterr().err, compiling.seconds) == ("", first)
    with compiling:
        outer(2.5)
    assert "once" not in capsys.readouterr().err
    assert compiling.seconds > first


def test_a_line_appears_above_the_bar_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Output().progress("reading") as update:
        say("a line")
        update(1, 2000, "reading")
    shown = screen.getvalue()
    # rich erases the bar first, and writes it again below the line.
    assert re.search(r"\x1b\[2Ka line\n", shown)
    assert "1 of 2,000 tokens" in shown
    assert "None" not in shown


def test_tiers_match_the_codecs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "codec_limit", lambda c, *_: "no kernel" if c.name == "turbo4" else None)
    code, out, _ = run(capsys, "tiers", "-m", TINY, "--json")
    assert code == 0
    tiers = {t["name"]: t for t in json.loads(out.splitlines()[-1])["tiers"]}
    layers = tiny_model("llama").config.layers
    # The model has heads of 16 values.
    assert (tiers["turbo3"]["bits_per_value"], tiers["q8_0"]["bits_per_value"]) == (4, 17)
    assert tiers["f16"]["bytes_per_token"] == sum(2 * 2 * layer.n_kv * layer.head_dim for layer in layers)
    assert 0 < tiers["turbo3"]["bytes_per_token"] < tiers["q8_0"]["bytes_per_token"]
    # What the backend does not run has no bytes there, and says which does.
    assert tiers["turbo4"]["bytes_per_token"] is None and tiers["turbo4"]["backends"] == ["ref", "cuda"]
    code, out, _ = run(capsys, "tiers", "-m", TINY, "--backend", "ref", "--json")
    there = {t["name"]: t for t in json.loads(out.splitlines()[-1])["tiers"]}
    for name, t in there.items():
        # Values are not centered.
        both = t["bits_per_value"] + there[name.removesuffix("+c")]["bits_per_value"]
        bits = sum(layer.n_kv * layer.head_dim * both for layer in layers)
        assert t["bytes_per_token"] == pytest.approx(bits / 8), name


@pytest.mark.parametrize(
    ("dim", "want"),
    [(64, (4.25, 2.375, 8.5)), (80, (4.2, 2.3, 10.2)), (128, (4.125, 2.1875, 8.5)), (104, (5.077, 2.692, 10.462))],
)
def test_tiers_count_real_bits(dim: int, want: tuple[float, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tiers", "--head-dim", str(dim), "--json")
    assert code == 0 and f"K/V types at head_dim {dim}" in out
    tiers = {t["name"]: t for t in json.loads(out.splitlines()[-1])["tiers"]}
    assert set(CODECS) - {"f32"} < set(tiers)
    assert [tiers[n]["bits_per_value"] for n in ("turbo4", "turbo2_tcq", "q8_0")] == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize("backend", HOSTS)
@pytest.mark.parametrize("name", CODECS)
def test_plan_takes_every_type(name: str, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", "-m", TINY, "--backend", backend, "--kv", f"{name}/turbo2_tcq", "--json")
    assert code == 0, err
    plan = json.loads(out.splitlines()[-1])
    assert {layer["tier"] for layer in plan["layers"]} == {f"{name}/turbo2_tcq"}


def test_plan_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "-m", TINY, "--agents", "8", "--ctx", "512", "--json")
    assert code == 0
    plan = json.loads(out.splitlines()[-1])
    assert plan["nbytes"] == plan["shared_nbytes"] + 8 * plan["private_nbytes"]
    assert plan["nbytes"] == sum(layer["k_nbytes"] + layer["v_nbytes"] for layer in plan["layers"])
    assert plan["f16_nbytes"] > 2 * plan["nbytes"]


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_inspect(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", str(tiny_path(model, "q8_0")), "--tensors", "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    assert result["config"]["arch"] == model
    metadata = result["metadata"]
    assert metadata["general.architecture"] == model
    assert metadata[f"{model}.block_count"] == result["layers"]
    assert metadata["tokenizer.ggml.tokens"] == f"array of {result['config']['vocab']}"
    assert "token_embd.weight" in out
    assert result["layers"] == max(int(n.split(".")[1]) for n in result["tensors"] if n.startswith("blk.")) + 1


def test_doctor_examines_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "doctor", "--json")
    assert code == 0, err
    checks = {c["name"]: c for c in json.loads(out.splitlines()[-1])["checks"]}
    assert {
        "python",
        "packages",
        "backend cpu",
        "simd",
        "threads",
        "kernel cache",
        "model smollm2",
        "disk",
        "gpu",
    } <= set(checks)
    assert checks["backend ref"]["state"] == "ok"


def test_doctor_examines_a_source_folder_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("polykv.doctor.metadata.requires", requires)
    checks = {c.name: c for c in examine()}
    assert checks["packages"].state is State.NOTE and "without `pip install .`" in checks["packages"].text
    assert checks["backend cpu"].state is State.OK


def test_doctor_fails_when_a_backend_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load(name: str) -> None:
        raise ImportError("no machine code")

    monkeypatch.setattr("polykv.ops.load", load)
    code, out, err = run(capsys, "doctor")
    assert code == 2
    assert "no machine code" in out
    assert err.startswith("polykv: error: ") and "backend cpu" in err


def test_output_is_utf8_in_any_locale() -> None:
    code = "import sys, polykv.cli as c; sys.argv=['polykv', 'tiers']; c.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, check=True
    )
    assert "┃" in done.stdout.decode("utf-8")


def test_a_reader_that_leaves_is_no_error() -> None:
    code = "import sys, polykv.cli as c; sys.argv=['polykv', 'inspect', sys.argv[1], '--tensors']; c.main()"
    child = subprocess.Popen([sys.executable, "-c", code, TINY], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 0


def test_printable_disarms_control_characters() -> None:
    assert printable("a\x1b[2Jb\x9b\x7f") == "a\\x1b[2Jb\\x9b\\x7f"
    assert printable("Ünïcode → 漢字 🙂\n\t") == "Ünïcode → 漢字 🙂\n\t"
    assert [megabytes(n) for n in (0, 99_999, 100_000, 12_345_678)] == ["0.0 kB", "100.0 kB", "0.10 MB", "12.3 MB"]


def test_python_m_polykv_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "polykv", "nonsense"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("polykv: error: No such command 'nonsense'")
    done = subprocess.run([sys.executable, "-m", "polykv", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("polykv, version")
