"""What a file that is not a GGUF file probably is: the first bytes tell, and the error says so."""

from __future__ import annotations

_PREFIXES: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "it is a git-lfs pointer: fetch the real file (`git lfs pull`)"),
    (b"\x00\x00\x00\x00", "it starts with zeros: probably a download that reserved its space and did not finish"),
    (b"FUGG", "the magic is byte-swapped: a big-endian file, which this build does not read"),
    (b"lmgg", "it is a GGML file of before 2023-08: convert it to GGUF"),
    (b"tjgg", "it is a GGJT file of before 2023-08: convert it to GGUF"),
    (b"PK\x03\x04", "it is a zip archive (a wheel or a PyTorch file): unpack or convert it"),
    (b"\x1f\x8b", "it is gzip-compressed: decompress it"),
    (b"\x80\x02", "it is a Python pickle: such files can run code and are never opened"),
    (b"\x80\x04", "it is a Python pickle: such files can run code and are never opened"),
)


def likely_cause(head: bytes) -> str:
    """A clause for an error message, from the first bytes of a file without the GGUF magic.

    >>> likely_cause(b"<!DOCTYPE html><html>")
    'it is a web page: the download link led to a login or error page'
    """
    if not head:
        return "the file is empty: the download did not start or was cut"
    if len(head) < 4 and b"GGUF".startswith(head):
        return "the file is cut off inside its magic: partial download"
    for prefix, cause in _PREFIXES:
        if head.startswith(prefix):
            return cause
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page: the download link led to a login or error page"
    if text.startswith((b"{", b"[")):
        return "it is JSON text: probably an error message or a configuration saved under this name"
    if head[8:9] == b"{":
        return "it looks like a safetensors file, not GGUF"
    if all(b in b"\t\n\r" or 32 <= b < 127 for b in head):
        return "it is a text file"
    return f"it begins with {head[:4].hex(' ')}, not with the magic `GGUF`"
