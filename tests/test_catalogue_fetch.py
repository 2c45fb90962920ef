"""Fetching without a network: a script in place of pip's interpreter, a small module in place of huggingface_hub."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from polykv import catalogue_fetch
from polykv.catalogue import resolve
from polykv.errors import DownloadError


# -- pip itself, without a network -----------------------------------------------------------------------------------
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """An interpreter in whose place `body` runs; its arguments are kept in a file."""
    script = tmp_path / "python"
    script.write_text(
        f'#!{sys.executable}\nimport sys\nopen({str(tmp_path / "args")!r}, "w").write(" ".join(sys.argv[1:]))\n{body}\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(catalogue_fetch.sys, "executable", str(script))
    return tmp_path / "args"


def test_pip_progress_and_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "print('Collecting x'); print('Progress 5 of 10'); print('Progress 10 of 10')"
    args = fake_python(tmp_path, monkeypatch, body)
    seen: list[tuple[int, int]] = []
    catalogue_fetch.pip_download("x==1", tmp_path / "d", lambda *a: seen.append(a))
    assert seen == [(5, 10), (10, 10)]
    line = args.read_text()
    assert line.startswith("-m pip download --no-deps --only-binary :all:") and line.endswith(
        f"-d {tmp_path / 'd'} x==1"
    )


def test_pip_failure_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch, "print('noise'); print('ERROR: No matching distribution'); sys.exit(1)")
    with pytest.raises(DownloadError, match=r"(?s)x==1 could not be downloaded: ERROR: No matching.*pip config list"):
        catalogue_fetch.pip_download("x==1", tmp_path, lambda *a: None)


def test_pip_is_ended_on_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, monkeypatch, "import time; print('Progress 1 of 2', flush=True); time.sleep(600)")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue_fetch.pip_download("x==1", tmp_path, stop)


def test_old_or_missing_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = fake_python(tmp_path, monkeypatch, "")
    monkeypatch.setattr(catalogue_fetch.metadata, "version", lambda name: "23.2.1")
    catalogue_fetch.pip_download("x==1", tmp_path, lambda *a: None)
    assert "--progress-bar off" in args.read_text()

    def missing(name: str) -> str:
        raise catalogue_fetch.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(catalogue_fetch.metadata, "version", missing)
    with pytest.raises(DownloadError, match="ensurepip"):
        catalogue_fetch.pip_download("x==1", tmp_path, lambda *a: None)


# -- hf: -------------------------------------------------------------------------------------------------------------
class FakeHub(types.ModuleType):
    """What hub_file uses of huggingface_hub: a cache directory per repository and a remote list of files."""

    def __init__(self, root: Path, remote: dict[str, list[str]], online: bool = True) -> None:
        super().__init__("huggingface_hub")
        self.root, self.remote, self.online, self.asked = root, remote, online, 0
        self.constants = types.SimpleNamespace(ENDPOINT="")

    def snapshot_download(self, repo: str, local_files_only: bool) -> str:
        assert local_files_only
        if not (self.root / repo).is_dir():
            raise LookupError("not cached")
        return str(self.root / repo)

    def list_repo_files(self, repo: str) -> list[str]:
        self.asked += 1
        if not self.online:
            raise ConnectionError("offline\nlong text")
        return self.remote[repo]

    def hf_hub_download(self, repo: str, file: str, local_files_only: bool = False) -> str:
        path = self.root / repo / file
        if not local_files_only and not path.is_file():
            self.asked += 1
            if not self.online or file not in self.remote.get(repo, []):
                raise ConnectionError("offline\nlong text")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"GGUF")
        if not path.is_file():
            raise LookupError("not cached")
        return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub(tmp_path, {"a/one": ["README.md", "m.gguf"], "a/two": ["x.gguf", "y/z.gguf"], "a/none": ["x.bin"]})
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return hub


def test_hub_downloads_once(hub: FakeHub, tmp_path: Path) -> None:
    assert resolve("hf:a/one") == tmp_path / "a/one/m.gguf" and hub.asked == 2
    hub.online = False
    assert resolve("hf:a/one") == resolve("hf:a/one:m.gguf") == tmp_path / "a/one/m.gguf" and hub.asked == 2
    hub.online = True
    assert resolve("hf:a/two:y/z.gguf") == tmp_path / "a/two/y/z.gguf"


def test_hub_lists_what_there_is(hub: FakeHub) -> None:
    with pytest.raises(DownloadError, match=r"(?s)2 .gguf files; name one:.*hf:a/two:x.gguf\n.*hf:a/two:y/z.gguf"):
        resolve("hf:a/two")
    with pytest.raises(DownloadError, match=r"no \.gguf file"):
        resolve("hf:a/none")


def test_hub_offline_and_bad_names(hub: FakeHub) -> None:
    hub.online = False
    for spec in ("hf:a/one", "hf:a/one:m.gguf"):
        with pytest.raises(DownloadError, match=r"could not be fetched \(ConnectionError: offline\)"):
            resolve(spec)
    for spec in ("hf:", "hf:one", "hf:a/b/c", "hf:/b", "hf:a/"):
        with pytest.raises(DownloadError, match="expected hf:organisation/repository"):
            resolve(spec)


def test_hub_is_not_asked_when_its_name_does_not_resolve(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.constants = types.SimpleNamespace(ENDPOINT="https://hub.invalid")
    monkeypatch.setattr(catalogue_fetch, "getproxies", dict)
    with pytest.raises(DownloadError, match="gaierror"):
        resolve("hf:a/one")
    assert hub.asked == 0
