"""safetensors files with a checksum for every byte, written atomically and read with distrust.

    u64 length of the header | header: JSON, padded with spaces | sections, contiguous, in header order

The header is a normal safetensors header (github.com/huggingface/safetensors, "Format"), so any safetensors reader
opens the file. `__metadata__` carries `checksums` (blake2b of every section) and `header_checksum` (of the length
and the header with this one value zeroed).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from polykv.errors import ConfigError, FormatError, PolyKVError
from polykv.file_kind import FileKind, file_kind
from polykv.whole_file import whole_file

# Our headers hold a few hundred bytes per layer. The limit keeps a hostile one from costing time and memory.
HEADER_LIMIT = 4 << 20
_SLAB = 4 << 20
_UNSET = "0" * 32
_FOREIGN = "not a polykv pool file: a safetensors file of another program, or a damaged one"
# What to do with files that are not pools but belong elsewhere.
_ADVICE = {
    FileKind.GGUF: "; -m (`polykv.load`) takes it",
    FileKind.OTHER: ", or a pool file that is damaged",
    FileKind.TEXT: "; a document is read as it is: `polykv ask FILE` (`llm.pool`)",
}
_DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype("u1"), "I32": np.dtype("<i4")}


@dataclass(frozen=True)
class Section:
    """One tensor: begin and end are byte offsets from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0
    end: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


def _digest() -> Any:
    return hashlib.blake2b(digest_size=16)


# -- writing ---------------------------------------------------------------------------------------------------
def write_file(
    path: Path,
    metadata: dict[str, str],
    sections: list[Section],
    data: Callable[[str], Iterable[npt.NDArray[Any]]],
) -> int:
    """Write sections (arrays of `data(name)`, in order) to a temporary file, then rename it; returns the size.

    The file is readable by its owner only. Raises FormatError when it cannot be written; an older file at `path`
    then stays as it was.
    """
    sums = {s.name: _UNSET for s in sections}
    # Checksums have a fixed width, so the header can be written last without moving the data.
    room = len(_header(metadata, sections, sums))
    if room > HEADER_LIMIT:
        raise ConfigError(f"{path}: {room} bytes of metadata do not fit into {HEADER_LIMIT}")
    with whole_file(path) as f:
        f.seek(room)
        for s in sections:
            sums[s.name] = _write_section(f, s, data(s.name))
        size = f.tell()
        f.seek(0)
        f.write(_header(metadata, sections, sums))
    return size


def _reason(e: OSError | ValueError) -> str:
    """Why a path was refused; a ValueError is about a NUL character in it."""
    return (e.strerror if isinstance(e, OSError) else None) or str(e)


def _header(metadata: dict[str, str], sections: list[Section], sums: dict[str, str]) -> bytes:
    """Length and header, with the checksums filled in."""
    header: dict[str, object] = {
        "__metadata__": metadata | {"checksums": json.dumps(sums), "header_checksum": _UNSET},
    }
    at = 0
    for s in sections:
        header[s.name] = {"dtype": s.dtype, "shape": list(s.shape), "data_offsets": [at, at + s.nbytes]}
        at += s.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    blank = len(text).to_bytes(8, "little") + text
    mark = b'"header_checksum":"'
    return blank.replace(mark + _UNSET.encode(), mark + _sum(blank).encode())


def _write_section(f: BinaryIO, section: Section, parts: Iterable[npt.NDArray[Any]]) -> str:
    digest, left = _digest(), section.nbytes
    for part in parts:
        raw = np.ascontiguousarray(part, _DTYPES[section.dtype]).reshape(-1).view(np.uint8)
        digest.update(raw)
        f.write(raw.data)
        left -= raw.nbytes
    if left:
        raise RuntimeError(f"section {section.name}: {left} bytes are missing")
    return str(digest.hexdigest())


def _sum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# -- reading ---------------------------------------------------------------------------------------------------
class Container:
    """An open file whose header was checked: structure, bounds, full coverage, header checksum.

    Section data is only trusted after `verify`. Raises FormatError for everything that is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Not a regular file: opening a pipe would wait for ever.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise FormatError(path, "", "is not a regular file")
            self._file = open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        except (OSError, ValueError) as e:
            raise FormatError(path, "", f"cannot be read: {_reason(e)}") from None
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.metadata, self.sections = self._parse()
            self._sums = self._parse_sums()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def error(self, what: str, reason: str) -> PolyKVError:
        return FormatError(self.path, what, reason)

    def _read(self, begin: int, n: int) -> bytes:
        self._file.seek(begin)
        data = self._file.read(n)
        if len(data) != n:
            raise self.error("", "is shorter than it was when it was opened")
        return data

    def _parse(self) -> tuple[dict[str, str], dict[str, Section]]:
        head = self._read(0, min(self.size, 64))
        kind, n = file_kind(head), int.from_bytes(head[:8], "little")
        if kind is not FileKind.SAFETENSORS:
            raise self.error("", f"not a polykv pool file: it is {kind.value}{_ADVICE.get(kind, '')}")
        if not 0 < n <= HEADER_LIMIT:
            raise self.error("", f"{_FOREIGN} (a header of {n:,} bytes)")
        if n > self.size - 8:
            raise self.error("", f"is cut short: it has {self.size:,} bytes, its header alone needs {8 + n:,}")
        text = self._read(8, n)
        try:
            raw = json.loads(text.decode(), object_pairs_hook=self._no_duplicates, parse_constant=self._no_constant)
        except (ValueError, RecursionError):
            raise self.error("header", "is not valid JSON") from None
        metadata = raw.pop("__metadata__", None)
        if not isinstance(metadata, dict) or any(type(v) is not str for v in metadata.values()):
            raise self.error("", f"{_FOREIGN} (no __metadata__ of strings)")
        self._check_header(head[:8] + text, metadata.get("header_checksum", ""))
        sections = [self._section(name, entry, 8 + n) for name, entry in raw.items()]
        at = 8 + n
        for s in sorted(sections, key=lambda s: (s.begin, s.end)):
            if s.begin != at:
                raise self.error(s.name, "overlaps another section or leaves a hole before it")
            at = s.end
        if at != self.size:
            raise self.error("", f"sections end at byte {at}, the file at {self.size}")
        return metadata, {s.name: s for s in sections}

    def _check_header(self, data: bytes, claimed: str) -> None:
        if not re.fullmatch("[0-9a-f]{32}", claimed) or data.count(claimed.encode()) != 1:
            raise self.error("", f"{_FOREIGN} (no header_checksum)")
        if _sum(data.replace(claimed.encode(), _UNSET.encode())) != claimed:
            raise self.error("header", "is damaged (checksum)")

    def _section(self, name: str, entry: object, base: int) -> Section:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self.error(name, "must have dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise self.error(name, f"dtype must be one of {', '.join(_DTYPES)}")
        for what, numbers, count in (("shape", shape, None), ("data_offsets", offsets, 2)):
            good = isinstance(numbers, list) and len(numbers) <= 8 and count in (None, len(numbers))
            if not good or any(type(v) is not int or not 0 <= v < 1 << 62 for v in numbers):
                raise self.error(name, f"{what} must be a short list of non-negative integers")
        section = Section(name, dtype, tuple(shape), base + offsets[0], base + offsets[1])
        if not section.begin <= section.end <= self.size:
            raise self.error(name, "lies outside the file: it was cut short, or the header lies")
        if section.end - section.begin != section.nbytes:
            raise self.error(name, f"has {section.end - section.begin} bytes, its shape needs {section.nbytes}")
        return section

    def _parse_sums(self) -> dict[str, str]:
        sums = self.json("checksums")
        if set(sums) != set(self.sections):
            raise self.error("checksums", "do not name exactly the sections")
        return sums

    def json(self, key: str) -> dict[str, str]:
        """The metadata entry `key`, an object of strings."""
        try:
            value = json.loads(self.metadata.get(key, ""), object_pairs_hook=self._no_duplicates)
        except (ValueError, RecursionError):
            raise self.error(key, "is not valid JSON") from None
        if not isinstance(value, dict) or any(type(v) is not str for v in value.values()):
            raise self.error(key, "must be an object of strings")
        return value

    def _no_duplicates(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({k for k, _ in pairs}) != len(pairs):
            raise self.error("header", "has a key twice")
        return dict(pairs)

    def _no_constant(self, text: str) -> None:
        raise self.error("header", f"has the number {text}")

    def verify(self) -> None:
        """Compare every section with its checksum."""
        for s in self.sections.values():
            digest = _digest()
            for begin in range(s.begin, s.end, _SLAB):
                digest.update(self._read(begin, min(_SLAB, s.end - begin)))
            if digest.hexdigest() != self._sums[s.name]:
                raise self.error(s.name, "is damaged (checksum)")

    def array(self, name: str) -> npt.NDArray[Any]:
        """A whole section."""
        s = self.sections[name]
        return np.frombuffer(self._read(s.begin, s.nbytes), _DTYPES[s.dtype]).reshape(s.shape)

    def chosen(self, name: str, rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[Any]:
        """Rows of the first axis of a section, by ascending numbers."""
        s = self.sections[name]
        row = s.nbytes // s.shape[0] if s.shape[0] else 0
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
        data = b"".join(self._read(s.begin + int(r[0]) * row, len(r) * row) for r in runs)
        return np.frombuffer(data, _DTYPES[s.dtype]).reshape(len(rows), *s.shape[1:])
