"""What a file that is not a GGUF file probably is: the first bytes tell, and the error says so."""

from __future__ import annotations

from polykv.file_kind import FileKind, file_kind

_ADVICE: dict[FileKind, str] = {
    FileKind.EMPTY: "the download did not start or was cut",
    FileKind.LFS: "fetch the real file (`git lfs pull`)",
    FileKind.ZEROS: "probably a download that reserved its space and did not finish",
    FileKind.SWAPPED: "this build does not read it",
    FileKind.GGML: "convert it to GGUF",
    FileKind.GGJT: "convert it to GGUF",
    FileKind.ZIP: "unpack or convert it (a wheel or a PyTorch file)",
    FileKind.GZIP: "decompress it",
    FileKind.PICKLE: "such files can run code and are never opened",
    FileKind.WEB_PAGE: "the download link led to a login or error page",
    FileKind.JSON: "probably an error message or a configuration saved under this name",
    FileKind.SAFETENSORS: "convert the model to GGUF; a saved pool goes to `--pool` (`llm.load_pool`)",
}


def likely_cause(head: bytes) -> str:
    """A clause for an error message, from the first bytes of a file without the GGUF magic.

    >>> likely_cause(b"<!DOCTYPE html><html>")
    'it is a web page: the download link led to a login or error page'
    """
    if 0 < len(head) < 4 and b"GGUF".startswith(head):
        return "the file is cut off inside its magic: partial download"
    kind = file_kind(head)
    if kind is FileKind.OTHER:
        return f"it begins with {head[:4].hex(' ')}, not with the magic `GGUF`"
    advice = _ADVICE.get(kind)
    return f"it is {kind.value}" + (f": {advice}" if advice else "")
