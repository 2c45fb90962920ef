"""GGUF files, mapped into memory: metadata as Python values, tensors as views of the file.

    >>> model = read_gguf("model.gguf")                              # doctest: +SKIP
    >>> model.metadata["general.architecture"], model.tensor("blk.0.attn_q.weight").cols    # doctest: +SKIP
    ('llama', 576)

Everything is checked when the file is opened (sizes against the real file, offsets, overlap, types), so reading a
tensor later cannot run past the end. One thing cannot be checked: a file that another program truncates while it is
mapped ends the process with SIGBUS, as with every memory-mapped reader; replace model files by rename, never in place.
"""

from __future__ import annotations

import hashlib
import reprlib
import stat
from dataclasses import dataclass
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from polykv.errors import FormatError, UnsupportedError
from polykv.model.gguf_diagnose import likely_cause
from polykv.model.gguf_scan import RawTensor, Scanner
from polykv.page_cache import ask_for_large_pages, give_back
from polykv.types import F32, U8, WEIGHT_BLOCK, QuantTensor, WeightType

DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
_SAMPLES, _PAGE = 128, 4096
# Names of ggml's types that no kernel here reads, for the error that refuses them.
OTHER_TYPES: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. shape: outermost dimension first (NumPy order). offset: from the start of the file."""

    name: str
    type: WeightType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class GgufFile:
    """An open GGUF file. `notes`: remarks that a report should show (for example bytes after the last tensor)."""

    path: Path
    version: int
    alignment: int
    metadata: dict[str, object]
    tensors: dict[str, TensorInfo]
    header_bytes: int
    data: U8
    mapping: mmap
    notes: tuple[str, ...] = ()

    def info(self, name: str) -> TensorInfo:
        """Raises FormatError when the file has no tensor of that name."""
        try:
            return self.tensors[name]
        except KeyError:
            raise FormatError(self.path, name, "the tensor is missing") from None

    def tensor(self, name: str) -> QuantTensor:
        """A matrix, packed as in the file (no copy); a vector has one row. Leading dimensions become rows."""
        t = self.info(name)
        values, size = WEIGHT_BLOCK[t.type]
        row_bytes = t.shape[-1] // values * size
        return QuantTensor(t.type, self.data[t.offset : t.offset + t.nbytes].reshape(-1, row_bytes), t.shape[-1])

    def vector(self, name: str) -> F32:
        """A 1-D tensor of type F32, F16 or BF16 as an own float32 array."""
        t = self.info(name)
        if len(t.shape) != 1:
            raise FormatError(self.path, name, f"expected one dimension, found shape {list(t.shape)}")
        raw = self.data[t.offset : t.offset + t.nbytes]
        match t.type:
            case WeightType.F32:
                return raw.view("<f4").astype(np.float32)
            case WeightType.F16:
                return raw.view("<f2").astype(np.float32)
            case WeightType.BF16:
                return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        raise UnsupportedError(f"{self.path}: {name}: a vector of type {t.type.name}; expected F32, F16 or BF16")

    def give_back(self, name: str, nbytes: int) -> None:
        """Take the first bytes of a tensor out of memory: they will not be read again soon. The file stays mapped."""
        give_back(self.mapping, self.info(name).offset, self.info(name).offset + nbytes)

    @cached_property
    def _fingerprint(self) -> str:
        h = hashlib.blake2b(digest_size=16)
        h.update(self.data[: self.header_bytes].tobytes())
        h.update(self.data.size.to_bytes(8, "little"))
        first, last = self.header_bytes, max(self.header_bytes, self.data.size - _PAGE)
        for start in np.linspace(first, last, _SAMPLES).astype(np.int64):
            h.update(self.data[start : start + _PAGE].tobytes())
        return h.hexdigest()

    def fingerprint(self) -> str:
        """Identity of the model for caches: blake2b over the header (metadata and tensor table), the file size and 128
        pages of 4 KiB spread evenly over the data. Two conversions or fine-tunes of a model differ; a flipped byte
        inside one tensor may not (the catalogue checks full checksums). 15 ms for a 253 MB file."""
        return self._fingerprint


def read_gguf(path: str | Path) -> GgufFile:
    """Open and check a GGUF file (version 2 or 3, little-endian, one file).

    Raises FormatError for a malformed file (with the likely cause), UnsupportedError for tensor types, versions and
    split files that this build does not read.
    """
    path = Path(path)
    mapping = _map(path)
    scan = Scanner(path, mapping)
    n_tensors, n_kv = scan.counts()
    metadata = scan.metadata(n_kv)
    _refuse_split(path, metadata)
    raw = scan.tensors(n_tensors)
    alignment = _alignment(path, metadata)
    start = -(-scan.pos // alignment) * alignment
    _refuse_types(path, raw)
    tensors = [_place(path, t, start, alignment, scan.size) for t in raw]
    end = _check_overlap(path, tensors, start)
    notes: tuple[str, ...] = ()
    if scan.size - end > alignment:
        notes = (f"{scan.size - end} bytes after the last tensor are ignored",)
    data = np.frombuffer(mapping, np.uint8)
    version = int.from_bytes(scan.buf[4:8], "little")
    return GgufFile(path, version, alignment, metadata, {t.name: t for t in tensors}, scan.pos, data, mapping, notes)


def _map(path: Path) -> mmap:
    try:
        # Looked at before opening: opening a pipe would block.
        if not stat.S_ISREG(path.stat().st_mode):
            raise FormatError(path, "", "not a regular file")
        with path.open("rb") as f:
            head = f.read(256)
            if not head.startswith(b"GGUF"):
                raise FormatError(path, "", f"not a GGUF file: {likely_cause(head)}")
            mapping = mmap(f.fileno(), 0, access=ACCESS_READ)
            ask_for_large_pages(mapping)
            return mapping
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise FormatError(path, "", f"cannot be opened: {reason}") from None


def _refuse_split(path: Path, metadata: dict[str, object]) -> None:
    count = metadata.get("split.count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise FormatError(path, "split.count", f"expected a positive integer, found {reprlib.repr(count)}")
    if count > 1:
        raise UnsupportedError(
            f"{path}: one of {count} parts of a split model; join them first (`llama-gguf-split --merge FIRST OUT`)"
        )


def _alignment(path: Path, metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_ALIGNMENT
    if not good or value & (value - 1):  # type: ignore[operator]
        raise FormatError(
            path, "general.alignment", f"expected a power of two up to {MAX_ALIGNMENT}, found {reprlib.repr(value)}"
        )
    assert isinstance(value, int)
    return value


def _refuse_types(path: Path, raw: list[RawTensor]) -> None:
    known = {int(t) for t in WeightType}
    bad = [t for t in raw if t.type_id not in known]
    if not bad:
        return
    names = ", ".join(t.name for t in bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
    kinds = ", ".join(_type_name(i) for i in sorted({t.type_id for t in bad})[:8])
    have = ", ".join(t.name for t in WeightType)
    raise UnsupportedError(f"{path}: {names}: tensor type {kinds} is not supported; this build reads {have}")


def _type_name(type_id: int) -> str:
    """`IQ2_XXS (16)`, or the bare number of an unknown type."""
    return f"{OTHER_TYPES[type_id]} ({type_id})" if type_id in OTHER_TYPES else f"{type_id} (unknown)"


def _place(path: Path, t: RawTensor, start: int, alignment: int, size: int) -> TensorInfo:
    """Check one tensor against the real file and give it its place."""
    kind = WeightType(t.type_id)
    values, block = WEIGHT_BLOCK[kind]
    if t.dims[0] % values:
        raise FormatError(path, t.name, f"rows of {t.dims[0]} values are not whole {kind.name} blocks of {values}")
    nbytes = t.dims[0] // values * block
    for d in t.dims[1:]:
        nbytes *= d
    if t.offset % alignment:
        raise FormatError(path, t.name, f"offset {t.offset} is not a multiple of the alignment {alignment}")
    if start + t.offset + nbytes > size:
        end = start + t.offset + nbytes
        raise FormatError(path, t.name, f"ends at byte {end}, the file at {size}: partial download or corrupt table")
    return TensorInfo(t.name, kind, t.dims[::-1], start + t.offset, nbytes)


def _check_overlap(path: Path, tensors: list[TensorInfo], start: int) -> int:
    """Refuse tensors that share bytes; return where the last one ends."""
    end = start
    previous = ""
    for t in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if t.offset < end:
            raise FormatError(path, t.name, f"overlaps the tensor {previous}")
        end, previous = t.offset + t.nbytes, t.name
    return end
