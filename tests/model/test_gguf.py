"""Reading sound GGUF files: values, layouts, views; compared with the `gguf` package as writer and reader."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import BOOL, F64, I8, I64, STRING, U16, U64, Gguf, Tensor, array, scalar

from polykv.errors import FormatError, UnsupportedError
from polykv.model.gguf import OTHER_TYPES, read_gguf
from polykv.model.gguf_check import nonfinite
from polykv.model.gguf_texts import Texts
from polykv.types import WEIGHT_BLOCK, WeightType

TYPES = list(WeightType)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_values_of_every_type(tmp_path: Path) -> None:
    kv = [
        ("a.i8", scalar(I8, -3)),
        ("a.u16", scalar(U16, 65535)),
        ("a.u64", scalar(U64, 2**64 - 1)),
        ("a.i64", scalar(I64, -(2**63))),
        ("a.f64", scalar(F64, 0.1)),
        ("a.bool", True),
        ("a.text", "Grüße \x00\n"),
        ("a.empty", ""),
        ("a.flags", array(BOOL, [1, 0, 1])),
        ("a.numbers", array(U16, [1, 2, 3])),
        ("a.none", array(I64, [])),
        ("a.strings", array(STRING, ["", "日本", "x" * 300])),
        ("a.nostrings", array(STRING, [])),
    ]
    m = read_gguf(write(tmp_path / "a.gguf", Gguf(kv).build())).metadata
    assert (m["a.i8"], m["a.u16"], m["a.u64"], m["a.i64"], m["a.f64"]) == (-3, 65535, 2**64 - 1, -(2**63), 0.1)
    assert m["a.bool"] is True
    assert (m["a.text"], m["a.empty"]) == ("Grüße \x00\n", "")
    for key, dtype, want in (
        ("a.flags", bool, [1, 0, 1]),
        ("a.numbers", np.uint16, [1, 2, 3]),
        ("a.none", np.int64, []),
    ):
        got = m[key]
        assert isinstance(got, np.ndarray) and got.dtype == dtype and got.tolist() == want
    assert m["a.strings"] == ["", "日本", "x" * 300] and m["a.nostrings"] == []


@pytest.mark.parametrize("name", ["llama", "llama_rope_linear", "llama_rope_llama3", "gemma3"])
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_equals_the_gguf_package(golden: Path, name: str, kind: str) -> None:
    path = golden / "models" / name / f"model-{kind}.gguf"
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, want in fields.items():
        got = ours.metadata[key]
        assert (got.tolist() if isinstance(got, np.ndarray) else got) == want, key
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        info = ours.tensors[t.name]
        assert (int(info.type), info.shape, info.offset) == (int(t.tensor_type), tuple(t.shape[::-1]), t.data_offset)
        view = ours.tensor(t.name)
        assert view.data.tobytes() == t.data.tobytes()
        assert view.data.flags.c_contiguous and not view.data.flags.writeable
        if len(info.shape) == 1:
            np.testing.assert_array_equal(ours.vector(t.name), t.data.astype(np.float32))


@pytest.mark.parametrize("alignment", [16, 32, 64, 4096])
def test_alignment_is_honoured(tmp_path: Path, alignment: int) -> None:
    """The same tensors, odd sizes, read bit-equal whatever the declared alignment."""
    rng = np.random.default_rng(1)
    tensors = {f"t{i}": rng.standard_normal((i + 1, 5 + i)).astype(np.float32) for i in range(6)}
    w = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    w.add_custom_alignment(alignment)
    for name, a in tensors.items():
        w.add_tensor(name, a)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    g = read_gguf(tmp_path / "a.gguf")
    assert g.alignment == alignment
    for name, a in tensors.items():
        assert g.tensors[name].offset % alignment == 0
        assert g.tensor(name).data.tobytes() == a.tobytes()


@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_every_weight_type_has_its_size(tmp_path: Path, kind: WeightType) -> None:
    values, size = WEIGHT_BLOCK[kind]
    assert (values, size) == tuple(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(kind))])
    data = np.random.default_rng(2).integers(0, 256, 3 * 2 * size, np.uint8).tobytes()
    file = Gguf(tensors=[Tensor("w", [2 * values, 3], int(kind), data), Tensor("last", [1])])
    w = read_gguf(write(tmp_path / "a.gguf", file.build())).tensor("w")
    assert (w.type, w.rows, w.cols, w.data.shape) == (kind, 3, 2 * values, (3, 2 * size))
    assert w.data.tobytes() == data


def test_types_that_are_refused_have_ggmls_names() -> None:
    assert {k: gguf.GGMLQuantizationType(k).name for k in OTHER_TYPES} == OTHER_TYPES
    assert not set(OTHER_TYPES) & {int(k) for k in WeightType}


def test_vectors_and_dimensions(tmp_path: Path) -> None:
    x = np.array([1.5, -2.0, 3.25], np.float32)
    bf16 = (x.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    file = Gguf(
        tensors=[
            Tensor("f32", [3], 0, x.tobytes()),
            Tensor("f16", [3], 1, x.astype(np.float16).tobytes()),
            Tensor("bf16", [3], 30, bf16),
            Tensor("q8", [32], 8),
            Tensor("cube", [4, 3, 2], 0),
        ]
    )
    g = read_gguf(write(tmp_path / "a.gguf", file.build()))
    for name in ("f32", "f16", "bf16"):
        got = g.vector(name)
        assert got.dtype == np.float32 and got.flags.writeable
        np.testing.assert_array_equal(got, x)
        assert g.tensor(name).rows == 1
    assert g.tensors["cube"].shape == (2, 3, 4) and g.tensor("cube").rows == 6
    with pytest.raises(UnsupportedError, match="q8"):
        g.vector("q8")
    with pytest.raises(FormatError, match="one dimension"):
        g.vector("cube")
    with pytest.raises(FormatError, match="nothing"):
        g.tensor("nothing")


def test_trailing_bytes_are_reported(tmp_path: Path) -> None:
    content = Gguf(tensors=[Tensor("w", [8])]).build()
    assert read_gguf(write(tmp_path / "a.gguf", content)).notes == ()
    notes = read_gguf(write(tmp_path / "b.gguf", content + content)).notes
    assert len(notes) == 1 and f"{len(content)} bytes" in notes[0]


def test_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    content = Gguf(tensors=[Tensor("w", [3], 0, b"abcdefghijkl")]).build()
    g = read_gguf(write(tmp_path / "a.gguf", content.rstrip(b"\0")))
    assert g.tensor("w").data.tobytes() == b"abcdefghijkl"


def test_fingerprint(tmp_path: Path) -> None:
    """Equal for equal content anywhere; different for another header, size, or data at the ends and in between."""

    def of(content: bytes, name: str = "a.gguf") -> str:
        return read_gguf(write(tmp_path / name, content)).fingerprint()

    data = np.random.default_rng(3).integers(0, 256, 4 << 20, np.uint8)

    def build(d: np.ndarray, key: str = "x") -> bytes:
        return Gguf([("general.name", key)], [Tensor("w", [1 << 20], 0, d.tobytes())]).build()

    data = np.random.default_rng(3).integers(0, 256, 4 << 20, np.uint8)
    base = of(build(data))
    assert of(build(data), "other.gguf") == base and len(base) == 32
    assert of(build(data, "y")) != base
    assert of(build(data) + b"\0") != base
    for start, stop in ((0, 1), (data.size - 1, data.size), (1 << 21, (1 << 21) + (64 << 10))):
        changed = data.copy()
        changed[start:stop] ^= 1
        assert of(build(changed)) != base


@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_nonfinite_finds_the_block(tmp_path: Path, kind: WeightType) -> None:
    """One NaN or infinity per scale field is found, with its row; random codes alone never are."""
    values, size = WEIGHT_BLOCK[kind]
    rng = np.random.default_rng(4)
    x = rng.integers(0, 256, (4 * 3, size), np.uint8)
    fields = [o for o in range(0, size, 2) if kind == WeightType.F16 or _is_scale(kind, o)]
    for o in fields:
        x[:, o : o + 2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    if kind in (WeightType.F32, WeightType.BF16):
        x[:] = np.frombuffer(np.float32(1.0).tobytes()[4 - size :], np.uint8)

    def faults(blocks: np.ndarray) -> list[str]:
        file = Gguf(tensors=[Tensor("w", [3 * values, 4], int(kind), blocks.tobytes())])
        return [str(f) for f in nonfinite(read_gguf(write(tmp_path / "a.gguf", file.build())))]

    assert faults(x) == []
    if kind in (WeightType.F32, WeightType.BF16):
        bad = x.copy()
        bad[7] = np.frombuffer(np.float32(np.nan).tobytes()[4 - size :], np.uint8)
        assert len(faults(bad)) == 1
    for o in fields:
        for value in (np.nan, np.inf, -np.inf):
            bad = x.copy()
            bad[7, o : o + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
            (message,) = faults(bad)
            assert "row 2" in message and " 1 of " in message and kind.name in message


def _is_scale(kind: WeightType, offset: int) -> bool:
    """Whether the float16 at `offset` of a block matters as a scale, asked of the gguf package: does a NaN there come
    out?"""
    if kind in (WeightType.F32, WeightType.F16, WeightType.BF16):
        return False
    block = np.zeros(WEIGHT_BLOCK[kind][1], np.uint8)
    block[offset : offset + 2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(gguf.quants.dequantize(block, gguf.GGMLQuantizationType(int(kind)))).any())


def test_strings_are_a_sequence(tmp_path: Path) -> None:
    want = ["", "日本", "x" * 300, "\0", "é"]
    path = write(tmp_path / "a.gguf", Gguf([("a.strings", array(STRING, want))]).build())
    texts = read_gguf(path).metadata["a.strings"]
    assert isinstance(texts, Texts) and list(texts) == want and len(texts) == 5
    assert [texts[i] for i in range(-5, 5)] == want + want and texts[1:4] == want[1:4] and texts[::-2] == want[::-2]
    for i in (5, -6):
        with pytest.raises(IndexError):
            texts[i]
    assert texts == want and texts != [*want, ""] and texts != want[:4] and texts != "x" and texts != 5
    assert "日本" in texts and texts.index("x" * 300) == 2 and list(reversed(texts)) == want[::-1]


@pytest.mark.model
def test_reads_real_models(smollm2_path: Path, gemma3_path: Path) -> None:
    for path, n_tensors, n_tokens in ((smollm2_path, 272, 49152), (gemma3_path, 236, 262144)):
        g = read_gguf(path)
        tokens = g.metadata["tokenizer.ggml.tokens"]
        assert len(g.tensors) == n_tensors and isinstance(tokens, Texts)
        assert len(tokens) == n_tokens == len(list(tokens))
        assert nonfinite(g) == [] and g.notes == ()
