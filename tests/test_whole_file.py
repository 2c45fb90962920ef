"""Files that appear whole or not at all, and what is known before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from interrupts import interrupt_at

from polykv.errors import FormatError
from polykv.whole_file import check_writable, whole_file

POSIX = pytest.mark.skipif(not os.path.exists("/dev/null"), reason="needs a POSIX system")


def left(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_a_file_takes_the_place_of_another(tmp_path: Path, private: bool, mode: int) -> None:
    before = os.umask(0o027)
    try:
        for content in (b"a longer one", b"short"):
            with whole_file(tmp_path / "x", private=private) as f:
                f.write(content)
            assert left(tmp_path) == {"x": content}
    finally:
        os.umask(before)
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), ZeroDivisionError(), FormatError("where", "", "why")])
def test_what_was_there_stays_when_writing_breaks_off(tmp_path: Path, raised: BaseException) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(type(raised)), whole_file(tmp_path / "x") as f:
        f.write(b"new")
        raise raised
    assert left(tmp_path) == {"x": b"old"}


def test_ctrl_c_at_any_line_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    def write() -> None:
        with whole_file(tmp_path / "x") as f:
            f.write(b"new")

    n = 0
    (tmp_path / "x").write_bytes(b"old")
    while interrupt_at(n, write, ("/polykv/whole_file",)):
        assert left(tmp_path) in ({"x": b"old"}, {"x": b"new"}), n
        (tmp_path / "x").write_bytes(b"old")
        n += 1
    assert n > 10


def test_a_full_disk_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="x: cannot be written: No space"), whole_file(tmp_path / "x"):
        raise OSError(28, os.strerror(28))
    assert not left(tmp_path)


@POSIX
@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("/dev/null", "not a regular file"),
        ("no/such/folder", "No such file"),
        ("file/below", "Not a directory"),
        ("", "not a regular file"),
        ("n" * 300, "too long"),
        ("a\0b", "null"),
    ],
)
def test_what_cannot_be_written_is_known_before(tmp_path: Path, where: str, why: str) -> None:
    """A device, above all, is not replaced by a file."""
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / where
    with pytest.raises(FormatError, match=why):
        check_writable(path)
    with pytest.raises(FormatError, match=why), whole_file(path) as f:
        f.write(b"x")
    assert not Path("/dev/null").is_file()
    assert left(tmp_path) == {"file": b""}


def test_asking_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "x")
    assert not left(tmp_path)
    (tmp_path / "x").write_bytes(b"old")
    check_writable(tmp_path / "x")
    assert left(tmp_path) == {"x": b"old"}
