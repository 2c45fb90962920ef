"""Reading the header of a GGUF file: counts, metadata, tensor descriptions.

    magic "GGUF" | u32 version | u64 n_tensors | u64 n_kv | n_kv x (key, u32 type, value)
    | n_tensors x (name, u32 n_dims, n_dims x u64, u32 type, u64 offset) | padding | data

Strings are a u64 length and UTF-8 bytes; arrays are u32 type, u64 count, values. Little-endian.

The file is not trusted. Every count and length is compared, as a Python integer, with the bytes that are left before
anything is allocated or looped over, so a false number costs nothing.

Why not `gguf.GGUFReader`: measured on a 262,144-entry vocabulary it takes 9.5 s and 716 MB (this reader: 0.2 s, 40 MB),
and it checks neither string lengths nor counts before it allocates.
"""

from __future__ import annotations

import math
import struct
from array import array
from mmap import mmap
from typing import NoReturn

import numpy as np

from polykv.errors import FormatError, UnsupportedError
from polykv.model.gguf_texts import Texts

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
# The largest vocabularies in use have 0.8 million strings with their merges and 10 MB of text. A string takes 8 bytes
# here, and some 100 bytes in tokenizers that look at all of them; these limits keep a hostile header below 100 MB.
MAX_STRINGS = 1 << 20
MAX_TEXT = 1 << 25
MAX_ELEMENTS = 1 << 22
MAX_NAME = 64
_MIN_KV_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

_STRING, _BOOL, _ARRAY = 8, 7, 9
# GGUF value type -> numpy type; 7 (bool) is one byte that must be 0 or 1.
_NUMBERS: dict[int, np.dtype[np.generic]] = {
    i: np.dtype(code)
    for i, code in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1", 10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip
_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


class RawTensor:
    """One entry of the tensor table as written: name, dims (fastest first), type id, offset in the data section."""

    __slots__ = ("dims", "name", "offset", "type_id")

    def __init__(self, name: str, dims: tuple[int, ...], type_id: int, offset: int) -> None:
        self.name, self.dims, self.type_id, self.offset = name, dims, type_id, offset


class Scanner:
    """A cursor over the mapped file that refuses to step over its end."""

    def __init__(self, path: object, buf: mmap) -> None:
        self.path = path
        self.buf = buf
        self.size = len(buf)
        self.pos = 0
        self.strings_left = MAX_STRINGS
        self.text_left = MAX_TEXT

    def fail(self, what: str, reason: str) -> NoReturn:
        raise FormatError(self.path, what, reason)

    def need(self, n: int, what: str) -> int:
        """Step over n bytes; return where they begin."""
        start, left = self.pos, self.size - self.pos
        if n > left:
            self.fail(what, f"needs {n} bytes at offset {start}, the file has {left} left (truncated or corrupt)")
        self.pos = start + n
        return start

    def u32(self, what: str) -> int:
        return int(_U32(self.buf, self.need(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64(self.buf, self.need(8, what))[0])

    def text(self, what: str) -> str:
        n = self.u64(what)
        start = self.need(n, what)
        self._charge(n, what)
        try:
            return self.buf[start : self.pos].decode()
        except UnicodeDecodeError as e:
            self.fail(what, f"string is not UTF-8 ({e.reason} at byte {e.start})")

    def _charge(self, n: int, what: str) -> None:
        """Count text bytes against the limit of the whole header."""
        self.text_left -= n
        if self.text_left < 0:
            self.fail(what, f"the header holds more than {MAX_TEXT} bytes of text")

    def name(self, what: str, limit: int) -> str:
        """A key or tensor name: not empty, printable, at most `limit` bytes."""
        n = self.u64(what)
        if not 0 < n <= limit:
            self.fail(what, f"name has {n} bytes, allowed are 1 to {limit}")
        self.pos -= 8
        text = self.text(what)
        if not text.isprintable():
            self.fail(what, f"name {text!r} holds control characters")
        return text

    def strings(self, n: int, what: str) -> Texts:
        """n strings; the loop that decides the load time of large vocabularies (0.1 s for 262,144)."""
        if n * 8 > self.size - self.pos:
            self.fail(what, f"array of {n} strings does not fit into the {self.size - self.pos} bytes left")
        if n > self.strings_left:
            self.fail(what, f"the header holds more than {MAX_STRINGS} strings in arrays")
        self.strings_left -= n
        buf, pos, size = self.buf, self.pos, self.size
        limit = pos + 8 * n + self.text_left
        starts = array("q", [pos + 8])
        append = starts.append
        try:
            for _ in range(n):
                stop = pos + 8 + _U64(buf, pos)[0]
                if stop > size or stop > limit:
                    self._refuse_string(f"{what}[{len(starts) - 1}]", stop)
                # Decoded only to see that it can be.
                str(buf[pos + 8 : stop], "utf-8")
                pos = stop
                append(pos + 8)
        except UnicodeDecodeError as e:
            self.fail(f"{what}[{len(starts) - 1}]", f"string is not UTF-8 ({e.reason} at byte {e.start})")
        except struct.error:
            self.fail(f"{what}[{len(starts) - 1}]", "the file ends inside the array (truncated)")
        self._charge(pos - self.pos - 8 * n, what)
        self.pos = pos
        return Texts(buf, starts)

    def _refuse_string(self, what: str, stop: int) -> NoReturn:
        if stop > self.size:
            self.fail(what, f"string ends at byte {stop}, the file at {self.size}")
        self.fail(what, f"the header holds more than {MAX_TEXT} bytes of text")

    def numbers(self, type_id: int, n: int, what: str) -> np.ndarray:
        """n numbers as a read-only view of the file."""
        dtype = _NUMBERS[type_id]
        if n > MAX_ELEMENTS:
            self.fail(what, f"array of {n} elements; at most {MAX_ELEMENTS} are accepted")
        start = self.need(n * dtype.itemsize, what)
        view = np.frombuffer(self.buf, dtype, n, start)
        if type_id != _BOOL:
            return view
        if n and int(view.max()) > 1:
            self.fail(what, "a boolean is neither 0 nor 1")
        return view.view(np.bool_)

    def value(self, what: str) -> object:
        """One typed metadata value: int, float, bool, str, `Texts` or a NumPy array."""
        type_id = self.u32(what)
        if type_id == _STRING:
            return self.text(what)
        if type_id in _NUMBERS:
            return self.numbers(type_id, 1, what)[0].item()
        if type_id != _ARRAY:
            self.fail(what, f"unknown value type {type_id}")
        type_id, n = self.u32(what), self.u64(what)
        if type_id == _STRING:
            return self.strings(n, what)
        if type_id == _ARRAY:
            self.fail(what, "nested arrays are not allowed")
        if type_id not in _NUMBERS:
            self.fail(what, f"unknown array type {type_id}")
        return self.numbers(type_id, n, what)

    def counts(self) -> tuple[int, int]:
        """Check version and byte order; return (n_tensors, n_kv), both bounded by the size of the file."""
        self.pos = 4
        version = self.u32("version")
        if version not in (2, 3):
            if int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3):
                raise UnsupportedError(f"{self.path}: big-endian GGUF; this build reads little-endian files")
            raise UnsupportedError(f"{self.path}: GGUF version {version}; this build reads versions 2 and 3")
        n_tensors, n_kv = self.u64("tensor count"), self.u64("metadata count")
        left = self.size - self.pos
        for what, n, least, most in (
            ("tensor count", n_tensors, _MIN_TENSOR_BYTES, MAX_TENSORS),
            ("metadata count", n_kv, _MIN_KV_BYTES, MAX_KEYS),
        ):
            if n * least > left:
                self.fail(what, f"{n} entries cannot fit into the {left} bytes left (truncated or corrupt)")
            if n > most:
                self.fail(what, f"{n} entries; at most {most} are accepted")
        return n_tensors, n_kv

    def metadata(self, n: int) -> dict[str, object]:
        out: dict[str, object] = {}
        for i in range(n):
            key = self.name(f"metadata key {i}", 65535)
            if key in out:
                self.fail(key, "the key appears twice")
            out[key] = self.value(key)
        return out

    def tensor(self, i: int) -> RawTensor:
        name = self.name(f"tensor {i}", MAX_NAME)
        n_dims = self.u32(name)
        if not 1 <= n_dims <= 4:
            self.fail(name, f"{n_dims} dimensions, allowed are 1 to 4")
        dims = tuple(self.u64(name) for _ in range(n_dims))
        if 0 in dims or math.prod(dims) >= 1 << 63:
            self.fail(name, f"impossible shape {list(dims)}")
        return RawTensor(name, dims, self.u32(name), self.u64(name))

    def tensors(self, n: int) -> list[RawTensor]:
        out = [self.tensor(i) for i in range(n)]
        seen: set[str] = set()
        for t in out:
            if t.name in seen:
                self.fail(t.name, "the tensor appears twice")
            seen.add(t.name)
        return out
