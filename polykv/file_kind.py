"""What a file is, told from its first bytes, for messages about a file of the wrong kind."""

from __future__ import annotations

from enum import Enum


class FileKind(Enum):
    """Kinds that people hand in by mistake; the value completes a sentence that begins with `it is`."""

    EMPTY = "empty"
    GGUF = "a GGUF model file"
    LFS = "a git-lfs pointer"
    ZEROS = "a file that starts with zeros"
    SWAPPED = "a GGUF file in big-endian byte order"
    GGML = "a GGML file of before 2023-08"
    GGJT = "a GGJT file of before 2023-08"
    ZIP = "a zip archive"
    PDF = "a PDF"
    GZIP = "a gzip-compressed file"
    PICKLE = "a Python pickle"
    WEB_PAGE = "a web page"
    JSON = "JSON text"
    SAFETENSORS = "a safetensors file"
    TEXT = "a text file"
    OTHER = "of an unknown kind"


_PREFIXES: tuple[tuple[bytes, FileKind], ...] = (
    (b"version https://git-lfs", FileKind.LFS),
    (b"\x00\x00\x00\x00", FileKind.ZEROS),
    (b"FUGG", FileKind.SWAPPED),
    (b"lmgg", FileKind.GGML),
    (b"tjgg", FileKind.GGJT),
    (b"PK\x03\x04", FileKind.ZIP),
    (b"%PDF-", FileKind.PDF),
    (b"\x1f\x8b", FileKind.GZIP),
    (b"\x80\x02", FileKind.PICKLE),
    (b"\x80\x04", FileKind.PICKLE),
)


def file_kind(head: bytes) -> FileKind:
    """The kind of a file that begins with `head` (64 bytes are enough).

    >>> file_kind(b"<!DOCTYPE html><html>"), file_kind(b"Once upon a time"), file_kind(b"Gr\\xc3\\xbc\\xc3").name
    (<FileKind.WEB_PAGE: 'a web page'>, <FileKind.TEXT: 'a text file'>, 'TEXT')
    """
    if not head:
        return FileKind.EMPTY
    # First of all: the length of a header, little-endian, may begin with the bytes of any other kind.
    if head[6:9] == b"\0\0{":
        return FileKind.SAFETENSORS
    # A text may begin with the magic, but hardly go on with a version number.
    if head[:4] == b"GGUF" and b"\0" in head[4:8]:
        return FileKind.GGUF
    for prefix, kind in _PREFIXES:
        if head.startswith(prefix):
            return kind
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return FileKind.WEB_PAGE
    if text.startswith((b"{", b"[")):
        return FileKind.JSON
    return FileKind.TEXT if _is_text(head) else FileKind.OTHER


def _is_text(head: bytes) -> bool:
    """UTF-8 without control characters; the last character may be cut."""
    try:
        text = head.decode()
    except UnicodeDecodeError as e:
        if e.start < len(head) - 3 or e.reason != "unexpected end of data":
            return False
        text = head[: e.start].decode()
    return all(c in "\t\n\r\f" or c.isprintable() for c in text)
