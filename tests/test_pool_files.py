"""Files that are no pool, or the pool of another session: what a user is told, by the library and by the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_llm import DOCUMENT, tiny_llm
from tiny_models import tiny_path

from polykv import cli
from polykv.cache import container, persist
from polykv.errors import ConfigError, FormatError, MismatchError
from polykv.file_kind import FileKind, file_kind
from polykv.llm import LLM

RANDOM = np.random.default_rng(7).bytes(5000)
OTHERS = {
    "text": ("Gr\u00fc\u00dfe. This is a document.\n".encode() * 20, "it is a text file; a document is read as it is"),
    "gguf": (tiny_path("llama").read_bytes(), "it is a GGUF model file; -m"),
    "random": (RANDOM, "it is of an unknown kind, or a pool file that is damaged"),
    "empty": (b"", "it is empty"),
    "one byte": (b"\xff", "unknown kind"),
    "zip": (b"PK\x03\x04" + bytes(60), "it is a zip archive"),
    "json": (b'{"document": "x"}', "it is JSON text"),
    "page": (b"<!DOCTYPE html><html></html>", "it is a web page"),
    "long header": ((5 << 20).to_bytes(8, "little") + b"{" + bytes(6 << 20), "a safetensors file of another program"),
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return tiny_llm()


@pytest.mark.parametrize("name", OTHERS)
def test_another_file_is_called_what_it_is(name: str, llm: LLM, tmp_path: Path) -> None:
    content, words = OTHERS[name]
    path = tmp_path / "other.pool"
    path.write_bytes(content)
    with pytest.raises(FormatError) as error:
        llm.load_pool(path)
    message = str(error.value)
    assert "other.pool: not a polykv pool file: " in message and words in message
    assert "header of" not in message or name == "long header"
    assert message.isprintable() and len(message) < 400


def test_safetensors_of_others(llm: LLM, tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file({"a": np.zeros(4, np.uint8)}, tmp_path / "a", metadata)
        with pytest.raises(FormatError, match="not a polykv pool file: a safetensors file of another program"):
            llm.load_pool(tmp_path / "a")


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "document.txt"
    path.write_text(DOCUMENT)
    assert cli.run(["ask", "--pool", str(path), "-q", "Who?", "-m", str(tiny_path("llama"))]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if "note:" not in line]
    assert err == [
        f"polykv: error: {path}: not a polykv pool file: it is a text file; "
        "a document is read as it is: `polykv ask FILE` (`llm.pool`)"
    ]


def test_a_pool_file_that_was_cut_says_so(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "p.pool"
    with llm.pool(DOCUMENT) as pool:
        pool.save(path)
    data = path.read_bytes()
    path.write_bytes(data[:500])
    with pytest.raises(FormatError, match="is cut short: it has 500 bytes, its header alone needs"):
        llm.load_pool(path)
    path.write_bytes(data[:-1])
    with pytest.raises(FormatError, match="cut short"):
        llm.load_pool(path)


@pytest.mark.parametrize("n", [0x8B1F, 0x0280, 0x0480, 0x10280, 0x4B50, 0x7D7B])
def test_the_length_of_a_header_may_look_like_another_kind(n: int) -> None:
    head = n.to_bytes(8, "little") + b'{"__metadata__"'
    assert file_kind(head) is FileKind.SAFETENSORS


def test_a_text_about_gguf_is_a_text() -> None:
    assert file_kind(b"GGUF is a file format.") is FileKind.TEXT


@pytest.mark.parametrize("cut", range(5))
def test_text_may_end_inside_a_character(cut: int) -> None:
    head = ("x" * 60 + "\U0001f600").encode()[: 60 + cut]
    assert file_kind(head) is FileKind.TEXT
    assert file_kind(b"\xf0\x9f" + head) is FileKind.OTHER


# -- pools of another session --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("model", ("llama_rope_linear", {})),
        ("model", ("gemma3", {})),
        ("tier of layer 0", ("llama", {"kv": "f16"})),
        ("tier of layer 1", ("llama", {"kv": "q8_0/turbo3,1=q4_0"})),
    ],
)
def test_a_mismatch_names_the_field_and_both_models(
    field: str, other: tuple[str, dict[str, str]], llm: LLM, tmp_path: Path
) -> None:
    name, options = other
    with llm.pool(DOCUMENT) as pool:
        pool.save(tmp_path / "p")
    with pytest.raises(MismatchError, match=f"^{field} differs") as error:
        tiny_llm(name, **options).load_pool(tmp_path / "p")
    assert "the file (model 'llama') has" in str(error.value)
    assert f"this session (model {name!r}) has" in str(error.value)


@pytest.mark.parametrize(
    ("part", "field"),
    [("tables", "codec table of layer 2"), ("ropes", "rope of layer 2")],
)
def test_table_and_rope_are_named_too(
    part: str, field: str, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    to_json = type(llm.cache.identity).to_json

    def changed(self: object) -> str:
        raw = json.loads(to_json(self))
        raw[part] = [*raw[part][:2], "other", *raw[part][3:]]
        return json.dumps(raw)

    with llm.pool(DOCUMENT) as pool, monkeypatch.context() as m:
        m.setattr(type(llm.cache.identity), "to_json", changed)
        pool.save(path)
    used = llm.cache.used_nbytes
    with pytest.raises(MismatchError, match=f"^{field} differs: the file .model 'llama'. has") as error:
        llm.load_pool(path)
    assert error.value.field == field
    assert llm.cache.used_nbytes == used


def test_names_of_models_are_harmless(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may lack the name, or have one that would drive a terminal."""
    path = tmp_path / "p"
    write = container.write_file
    for name, shown in (("\x1b[31m" + "x" * 1000, r"'\\x1b\[31mx+"), (None, "'unknown'")):

        def lying(path, metadata, *rest, name=name):
            metadata = {k: v for k, v in metadata.items() if k != "model_name"}
            return write(path, metadata if name is None else metadata | {"model_name": name}, *rest)

        monkeypatch.setattr(persist, "write_file", lying)
        with llm.pool(DOCUMENT) as pool:
            pool.save(path)
        llm.load_pool(path).close()
        with pytest.raises(MismatchError, match=rf"model {shown}") as error:
            tiny_llm(kv="f16").load_pool(path)
        assert str(error.value).isprintable() and len(str(error.value)) < 500


@pytest.mark.parametrize("path", [5, None, True, b"x", ["x"]])
def test_what_is_no_path_is_refused_by_name(path: object, llm: LLM) -> None:
    with llm.pool(DOCUMENT) as pool, pytest.raises(ConfigError, match=r"path has .*; a file is named by"):
        pool.save(path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"path has .*; a file is named by"):
        llm.load_pool(path)  # type: ignore[arg-type]
