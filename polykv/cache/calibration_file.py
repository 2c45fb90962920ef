"""Calibration files: the factors of one side (K, or V), as other programs of this kind keep them.

    TIQ1    magic | i32 head_dim | f32 inverse factor [head_dim]                       one slot for every layer
    TIQ2    magic | i32 slots | per slot: i32 width, i32 head_dim, f32 inverse [head_dim]
    TIQ3    magic | i32 slots | per slot: i32 layer, i32 width, i32 head_dim, f32 inverse [width]

Four ASCII bytes of magic, everything else little-endian. TIQ1 and TIQ2 are the formats of the sources, whose fields are
published in prose only: the widths of the integers are our reading (docs/CALIBRATION.md). TIQ3 is ours: a slot for
each layer, factors for each of its kv heads. Nothing follows the last slot.
"""

from __future__ import annotations

import stat
import struct
from pathlib import Path

import numpy as np

from polykv.cache.calibration import ANY, EVERY_LAYER, Calibration, Slot
from polykv.errors import ConfigError, FormatError
from polykv.whole_file import whole_file

MAGIC = (b"TIQ1", b"TIQ2", b"TIQ3")
MAX_SLOTS = {b"TIQ1": 1, b"TIQ2": 4, b"TIQ3": 4096}
MAX_CHANNELS = 512
MAX_WIDTH = 1 << 20
# Factors beyond this range are no calibration: a key times one of them would leave the range of float16.
LEAST, MOST = 2.0**-10, 2.0**10
MAX_BYTES = 64 << 20


def write_slots(path: str | Path, slots: tuple[Slot, ...]) -> bytes:
    """Write the slots of one side, in the oldest of the formats that can hold them; returns the bytes.

    Raises ConfigError for slots that no format holds, FormatError when the file cannot be written; an older file at
    `path` stays as it was then.
    """
    data = to_bytes(slots)
    # Factors say nothing of the text that they were chosen with.
    with whole_file(path, private=False) as f:
        f.write(data)
    return data


def to_bytes(slots: tuple[Slot, ...]) -> bytes:
    """The content of a file; see `write_slots`."""
    magic = _magic(slots)
    if not 0 < len(slots) <= MAX_SLOTS[magic]:
        raise ConfigError(f"{len(slots)} slots of a calibration: {magic.decode()} holds 1 to {MAX_SLOTS[magic]}")
    parts = [magic]
    if magic != b"TIQ1":
        parts.append(struct.pack("<i", len(slots)))
    for s in slots:
        _check(s, magic)
        head = {b"TIQ1": (s.head_dim,), b"TIQ2": (s.width, s.head_dim), b"TIQ3": (s.layer, s.width, s.head_dim)}[magic]
        parts.append(struct.pack(f"<{len(head)}i", *head) + s.inverse.astype("<f4").tobytes())
    return b"".join(parts)


def _magic(slots: tuple[Slot, ...]) -> bytes:
    if any(s.layer != EVERY_LAYER for s in slots):
        return b"TIQ3"
    return b"TIQ1" if len(slots) == 1 and slots[0].width == ANY else b"TIQ2"


def _check(slot: Slot, magic: bytes) -> None:
    """Raise ConfigError for a slot that the format cannot express."""
    if slot.head_dim > MAX_CHANNELS:
        raise ConfigError(f"a calibration holds {MAX_CHANNELS} channels of a head at most, not {slot.head_dim}")
    rows = slot.width // slot.head_dim if magic == b"TIQ3" else 1
    if slot.heads != rows:
        raise ConfigError(f"{magic.decode()} holds factors for {rows} kv heads of a slot, not for {slot.heads}")
    if not ((slot.inverse >= LEAST) & (slot.inverse <= MOST)).all():
        raise ConfigError(f"a factor of a calibration is not a number from {LEAST:g} to {MOST:g}")


def read_slots(path: str | Path) -> tuple[Slot, ...]:
    """The slots of a file. Raises FormatError for anything that is not exactly such a file."""
    path = Path(path)
    try:
        # Looked at before opening: opening a pipe would block.
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise FormatError(path, "", "not a regular file")
        if info.st_size > MAX_BYTES:
            raise FormatError(path, "", f"not a calibration: {info.st_size} bytes, such files have {MAX_BYTES} at most")
        data = path.read_bytes()
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise FormatError(path, "", f"cannot be read: {reason}") from None
    return from_bytes(data, path)


def read_calibration(k: str | Path | None, v: str | Path | None = None) -> Calibration:
    """The calibration that files of K and of V hold; an empty one without any. Raises FormatError for a bad file."""
    return Calibration(*(() if path is None else read_slots(path) for path in (k, v)))


def from_bytes(data: bytes, where: object) -> tuple[Slot, ...]:
    """The slots that these bytes of file `where` hold; see `read_slots`."""
    return _Reader(data, where).slots()


class _Reader:
    """Takes fields off the front of a file, each checked against what is left before it is used."""

    def __init__(self, data: bytes, where: object) -> None:
        self._data, self._where, self._at = data, where, 4
        self._magic = data[:4]

    def _error(self, what: str, reason: str) -> FormatError:
        return FormatError(self._where, what, reason)

    def _integers(self, what: str, n: int) -> tuple[int, ...]:
        if len(self._data) - self._at < 4 * n:
            raise self._error(what, f"the file ends at byte {len(self._data)}, inside it")
        values: tuple[int, ...] = struct.unpack_from(f"<{n}i", self._data, self._at)
        self._at += 4 * n
        return values

    def slots(self) -> tuple[Slot, ...]:
        if self._magic not in MAGIC:
            raise self._error("", f"not a calibration: it begins with {self._magic!r}, not with TIQ1, TIQ2 or TIQ3")
        n = 1 if self._magic == b"TIQ1" else self._integers("slots", 1)[0]
        most = MAX_SLOTS[self._magic]
        if not 0 < n <= most:
            raise self._error("slots", f"{n} is out of range 1 to {most}")
        found = tuple(self._slot(f"slot {i}") for i in range(n))
        if self._at != len(self._data):
            raise self._error("", f"{len(self._data) - self._at} bytes after the last slot")
        if len({(s.layer, s.width, s.head_dim) for s in found}) < n:
            raise self._error("slots", "two are for the same layers")
        return found

    def _slot(self, what: str) -> Slot:
        width, layer = ANY, EVERY_LAYER
        if self._magic == b"TIQ1":
            (dim,) = self._integers(what, 1)
        elif self._magic == b"TIQ2":
            width, dim = self._integers(what, 2)
        else:
            layer, width, dim = self._integers(what, 3)
        if not 0 < dim <= MAX_CHANNELS:
            raise self._error(what, f"head_dim {dim} is out of range 1 to {MAX_CHANNELS}")
        wildcard = width == ANY and self._magic != b"TIQ3"
        if not (wildcard or (0 < width <= MAX_WIDTH and width % dim == 0)):
            raise self._error(what, f"rows of {width} values are not made of heads of {dim}")
        if layer < 0 and self._magic == b"TIQ3":
            raise self._error(what, f"layer {layer} is negative")
        n = width if self._magic == b"TIQ3" else dim
        if len(self._data) - self._at < 4 * n:
            raise self._error(what, f"the file ends at byte {len(self._data)}, inside its factors")
        inverse = np.frombuffer(self._data, "<f4", n, self._at).astype(np.float32).reshape(-1, dim)
        self._at += 4 * n
        if not ((inverse >= LEAST) & (inverse <= MOST)).all():
            raise self._error(what, f"a factor is not a number from {LEAST:g} to {MOST:g}")
        return Slot(inverse, width, layer)
