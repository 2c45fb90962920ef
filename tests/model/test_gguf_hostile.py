"""Malformed and hostile GGUF files: each ends in one typed error that names the place and the cause.

The cases are those that broke other readers: false counts and lengths, overflowing products, shifted or overlapping
tensors, files of another kind under a GGUF name.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from gguf_bytes import BOOL, F32, I32, STRING, U8, U32, U64, Gguf, Tensor, array, scalar, text, tiny

from polykv.errors import FormatError, PolyKVError, UnsupportedError
from polykv.model.gguf import read_gguf

GOOD = tiny().build()
HUGE = (2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


def refused(tmp_path: Path, content: bytes, match: str, kind: type[PolyKVError] = FormatError) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(kind, match=match) as e:
        read_gguf(path)
    message = str(e.value)
    assert "bad.gguf" in message and message.isprintable()
    return message


def header(n_tensors: int = 0, n_kv: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_kv)


# -- not a GGUF file -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "empty"),
        (b"GG", "cut off"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
        (b"\n <html>", "web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"hello, world\n", "text file"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (b"\x80\x02}q\x00.", "pickle"),
        (struct.pack("<Q", 64) + b'{"a":' + bytes(60), "safetensors"),
        (b"lmgg" + bytes(60), "GGML"),
        (bytes(4096), "zeros"),
        (b"FUGG" + bytes(60), "big-endian"),
        (b"\xde\xad\xbe\xef" * 9, "de ad be ef"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, cause: str) -> None:
    refused(tmp_path, content, cause)


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(FormatError, match="not a regular file"):
            read_gguf(path)
    with pytest.raises(FormatError, match="cannot be opened"):
        read_gguf(tmp_path / "missing.gguf")


@pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
def test_version(tmp_path: Path, version: int) -> None:
    refused(tmp_path, header(version=version) + bytes(64), f"version {version}", UnsupportedError)


def test_big_endian(tmp_path: Path) -> None:
    refused(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "big-endian", UnsupportedError)


# -- counts and lengths ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", HUGE)
def test_counts(tmp_path: Path, n: int) -> None:
    refused(tmp_path, header(n_tensors=n) + bytes(100), f"tensor count: {n} entries cannot fit")
    refused(tmp_path, header(n_kv=n) + bytes(100), f"metadata count: {n} entries cannot fit")


def test_counts_that_fit_a_sparse_file(tmp_path: Path) -> None:
    """A file of holes is large enough for any count; the entries themselves are not there."""
    path = tmp_path / "bad.gguf"
    for head in (header(n_kv=1 << 35), header(n_kv=1 << 16), header(n_tensors=1 << 34), header(n_tensors=1 << 16)):
        path.write_bytes(head)
        os.truncate(path, 1 << 40)
        with pytest.raises(FormatError):
            read_gguf(path)


@pytest.mark.parametrize("n", HUGE)
def test_string_lengths(tmp_path: Path, n: int) -> None:
    long = struct.pack("<Q", n) + b"abc"
    refused(tmp_path, header(n_kv=1) + long + bytes(40), "metadata key 0")
    refused(tmp_path, header(n_kv=1) + text("a.b") + struct.pack("<I", STRING) + long + bytes(40), "a.b: needs")
    refused(tmp_path, header(n_tensors=1) + long + bytes(40), "tensor 0")
    kv = [("a.b", array(STRING, ["x"], 2)[:-9] + long)]
    refused(tmp_path, Gguf(kv).build() + bytes(40), r"a\.b\[0\]")


@pytest.mark.parametrize("n", HUGE)
@pytest.mark.parametrize("kind", [U8, I32, STRING, BOOL, F32])
def test_array_counts(tmp_path: Path, kind: int, n: int) -> None:
    refused(tmp_path, Gguf([("a.b", array(kind, [], n))]).build() + bytes(40), "a.b")


def test_too_many_strings(tmp_path: Path) -> None:
    """Empty strings cost 8 bytes in a file of holes and nothing on disk: the number itself is bounded."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(Gguf([("a.b", array(STRING, [], 1 << 24))]).build())
    os.truncate(path, 1 << 30)
    with pytest.raises(FormatError, match="more than 1048576 strings"):
        read_gguf(path)


def test_too_much_text(tmp_path: Path) -> None:
    """One string, many keys, or many array entries: text is bounded in sum."""
    path = tmp_path / "bad.gguf"
    long = struct.pack("<IQ", STRING, 1 << 26)
    pieces = [("x.y", scalar(STRING, "z" * (1 << 20)))] + [
        (f"k{i}", scalar(STRING, "z" * (1 << 20))) for i in range(32)
    ]
    for content in (
        Gguf([("a.b", long)]).build(),
        Gguf(pieces).build(),
        Gguf([("a.b", array(STRING, ["z" * (1 << 20)] * 33))]).build(),
    ):
        path.write_bytes(content)
        os.truncate(path, 1 << 27)
        with pytest.raises(FormatError, match="more than 33554432 bytes of text"):
            read_gguf(path)


def test_too_many_numbers(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    for kind in (BOOL, U64):
        path.write_bytes(Gguf([("a.b", array(kind, [], 1 << 23))]).build())
        os.truncate(path, 1 << 30)
        with pytest.raises(FormatError, match="8388608 elements"):
            read_gguf(path)


# -- metadata --------------------------------------------------------------------------------------------------------
def test_keys(tmp_path: Path) -> None:
    refused(tmp_path, Gguf([("", 1)]).build(), "name has 0 bytes")
    refused(tmp_path, Gguf([("k" * 70000, 1)]).build(), "name has 70000 bytes")
    refused(tmp_path, Gguf([("a.b", 1), ("a.b", 2)]).build(), "a.b: the key appears twice")
    refused(tmp_path, Gguf([("general.architecture", "x"), ("general.architecture", "x")]).build(), "twice")
    for bad in ("a\0b", "a\nb", "\x1b[31mred"):
        refused(tmp_path, Gguf([(bad, 1)]).build(), "control characters")
    refused(tmp_path, Gguf([(b"\xff\xfe", 1)]).build(), "not UTF-8")


def test_values(tmp_path: Path) -> None:
    refused(tmp_path, Gguf([("a.b", struct.pack("<IQ", 13, 0))]).build(), "unknown value type 13")
    refused(tmp_path, Gguf([("a.b", struct.pack("<IIQ", 9, 77, 0))]).build(), "unknown array type 77")
    refused(tmp_path, Gguf([("a.b", struct.pack("<IIQ", 9, 9, 1) + array(U32, [1]))]).build(), "nested arrays")
    refused(tmp_path, Gguf([("a.b", scalar(BOOL, 2))]).build(), "neither 0 nor 1")
    refused(tmp_path, Gguf([("a.b", array(BOOL, [0, 255]))]).build(), "neither 0 nor 1")
    refused(tmp_path, Gguf([("a.b", scalar(STRING, b"\xc3"))]).build(), "a.b: string is not UTF-8")
    refused(tmp_path, Gguf([("a.b", array(STRING, ["ok", b"\x80"]))]).build(), r"a\.b\[1\]: string is not UTF-8")


@pytest.mark.parametrize("value", [0, 3, 48, 2**31, scalar(I32, -32), scalar(U64, 2**63), 32.0, "32", True, [32]])
def test_bad_alignment(tmp_path: Path, value: object) -> None:
    refused(tmp_path, Gguf([("general.alignment", value)], [Tensor("w", [8])]).build(), "general.alignment")


@pytest.mark.parametrize("kind", [U8, I32, U64])
def test_alignment_of_any_integer_type(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(Gguf([("general.alignment", scalar(kind, 64))], [Tensor("w", [8])], alignment=64).build())
    assert read_gguf(path).alignment == 64


def test_split_files(tmp_path: Path) -> None:
    message = refused(tmp_path, Gguf([("split.count", 3)]).build(), "one of 3 parts", UnsupportedError)
    assert "--merge" in message
    for bad in ("3", 2.0, [3], scalar(I32, -1)):
        refused(tmp_path, Gguf([("split.count", bad)]).build(), "split.count")
    path = tmp_path / "good.gguf"
    path.write_bytes(Gguf([("split.count", 1)]).build())
    assert read_gguf(path).tensors == {}


# -- tensors ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tensor", "match"),
    [
        (Tensor("", [8]), "name has 0 bytes"),
        (Tensor("n" * 65, [8]), "name has 65 bytes"),
        (Tensor("a\0", [8]), "control characters"),
        (Tensor("\x1b[2J", [8]), "control characters"),
        (Tensor(b"\xff", [8]), "not UTF-8"),
        (Tensor("w", [8], n_dims=0), "0 dimensions"),
        (Tensor("w", [1] * 5), "5 dimensions"),
        (Tensor("w", [8], n_dims=2**32 - 1), "4294967295 dimensions"),
        (Tensor("w", [0], data=b""), "impossible shape"),
        (Tensor("w", [8, 0], data=b""), "impossible shape"),
        (Tensor("w", [2**64 - 1, 2], data=b""), "impossible shape"),
        (Tensor("w", [2**32, 2**32, 2], data=b""), "impossible shape"),
        (Tensor("w", [2**42 + 1, 2**20], data=b""), "w: ends at byte"),
        (Tensor("w", [2**40], data=b""), "w: ends at byte"),
        (Tensor("w", [31], 8), "not whole Q8_0 blocks of 32"),
        (Tensor("w", [128], 12), "not whole Q4_K blocks of 256"),
        (Tensor("w", [8], offset=4), "not a multiple of the alignment"),
        (Tensor("w", [8], offset=2**20), "w: ends at byte"),
        (Tensor("w", [8], offset=2**64 - 32), "w: ends at byte"),
    ],
)
def test_tensor_table(tmp_path: Path, tensor: Tensor, match: str) -> None:
    refused(tmp_path, Gguf(tensors=[Tensor("first", [8]), tensor]).build(), match)


def test_tensors_twice_or_overlapping(tmp_path: Path) -> None:
    refused(tmp_path, Gguf(tensors=[Tensor("w", [8]), Tensor("w", [8])]).build(), "w: the tensor appears twice")
    two = [Tensor("a", [16]), Tensor("b", [16], offset=32)]
    refused(tmp_path, Gguf(tensors=two).build(), "b: overlaps the tensor a")
    same = [Tensor("a", [8], offset=0), Tensor("b", [8], offset=0)]
    refused(tmp_path, Gguf(tensors=same).build(), "overlaps")


@pytest.mark.parametrize("kind", [4, 5, 9, 15, 16, 24, 26, 31, 36, 42, 46, 400, 2**32 - 1])
def test_unsupported_types(tmp_path: Path, kind: int) -> None:
    file = Gguf(tensors=[Tensor("w.weight", [256], kind, bytes(1024)), Tensor("ok", [8])])
    message = refused(tmp_path, file.build(), "w.weight", UnsupportedError)
    assert str(kind) in message


# -- truncation and fuzz ---------------------------------------------------------------------------------------------
def test_partial_download(tmp_path: Path) -> None:
    refused(tmp_path, GOOD[: len(GOOD) - 2000], "partial download")


def test_every_prefix_is_refused(tmp_path: Path) -> None:
    end = read_from(tmp_path, GOOD)
    for n in [*range(min(len(GOOD), 3000)), *range(3000, end, 501), end - 1]:
        path = tmp_path / "cut.gguf"
        path.write_bytes(GOOD[:n])
        with pytest.raises(FormatError):
            read_gguf(path)


def read_from(tmp_path: Path, content: bytes) -> int:
    """Where the last tensor of a sound file ends."""
    path = tmp_path / "good.gguf"
    path.write_bytes(content)
    return max(t.offset + t.nbytes for t in read_gguf(path).tensors.values())
