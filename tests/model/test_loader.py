"""Loading whole models: tiny golden files, real files, and files whose parts do not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import Gguf, Tensor, tiny
from tiny_models import NAMES

import polykv
from polykv import cli
from polykv.config import Mixer
from polykv.errors import FormatError, UnsupportedError
from polykv.model.gguf_check import nonfinite
from polykv.model.loader import Model, load_model
from polykv.types import WeightType


def load(tmp_path: Path, file: Gguf) -> Model:
    path = tmp_path / "m.gguf"
    path.write_bytes(file.build())
    return load_model(path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_golden_models(golden: Path, name: str, kind: str) -> None:
    m = load_model(golden / "models" / name / f"model-{kind}.gguf")
    c = m.config
    assert (c.embd, c.vocab, c.context) == (64, 320, 4096) and m.notes == () and nonfinite(m.gguf) == []
    assert len(c.layers) == len(m.attention) == len(m.mlp) == (6 if name == "gemma3" else 3)
    assert c.tied_head == (name != "llama_rope_llama3")
    assert (m.head.out is m.embedding) == c.tied_head
    assert m.embedding.type == (WeightType.F16 if kind == "f16" else WeightType.Q8_0)
    for layer, a, f in zip(c.layers, m.attention, m.mlp, strict=True):
        assert (a.wq.rows, a.wk.rows, a.wv.rows, a.wo.rows) == (64, layer.n_kv * 16, layer.n_kv * 16, 64)
        assert (a.wq.cols, a.wo.cols, f.gate.rows, f.up.rows, f.down.cols) == (64, 64, 128, 128, 128)
        gemma = name == "gemma3"
        assert (a.q_norm is not None, a.post_norm is not None, f.post_norm is not None) == (gemma,) * 3
        assert (a.window, a.scale, a.eps, f.eps) == (layer.window, layer.scale, c.eps, c.eps)
    if name == "gemma3":
        assert [layer.window for layer in c.layers] == [16, 16, 0] * 2


def test_golden_weights_are_the_file(golden: Path) -> None:
    """Views, not copies: the bytes of all tensors are counted once and lie in the mapped file."""
    m = load_model(golden / "models" / "llama" / "model-q8_0.gguf")
    assert np.shares_memory(m.attention[1].wk.data, m.gguf.data)
    assert m.weight_bytes == sum(t.nbytes for t in m.gguf.tensors.values()) < m.gguf.data.size
    assert m.fingerprint == m.gguf.fingerprint()
    other = load_model(golden / "models" / "llama" / "model-f16.gguf")
    assert other.fingerprint != m.fingerprint


def test_fused_qkv(tmp_path: Path) -> None:
    """One tensor with rows q|k|v gives the same weights as three."""
    rng = np.random.default_rng(0)
    split, fused = tiny(), tiny()
    for i in range(2):
        parts = {x: rng.standard_normal((n, 32)).astype(np.float32) for x, n in (("q", 32), ("k", 16), ("v", 16))}
        for t in split.tensors:
            for x, a in parts.items():
                if t.name == f"blk.{i}.attn_{x}.weight":
                    t.data = a.tobytes()
        whole = np.concatenate(list(parts.values()))
        fused.tensors = [
            t for t in fused.tensors if not str(t.name).startswith(tuple(f"blk.{i}.attn_{x}." for x in "qkv"))
        ]
        fused.tensors.append(Tensor(f"blk.{i}.attn_qkv.weight", [32, 64], 0, whole.tobytes()))
    (tmp_path / "split").mkdir()
    a, b = load(tmp_path / "split", split), load(tmp_path, fused)
    for x, y in zip(a.attention, b.attention, strict=True):
        for p, q in ((x.wq, y.wq), (x.wk, y.wk), (x.wv, y.wv)):
            assert p.data.tobytes() == q.data.tobytes() and (p.rows, p.cols) == (q.rows, q.cols)
            assert q.data.flags.c_contiguous


def test_untied_head(tmp_path: Path) -> None:
    file = tiny()
    file.tensors.append(Tensor("output.weight", [32, 5], 1))
    m = load(tmp_path, file)
    assert not m.config.tied_head and m.head.out.type == WeightType.F16 and m.embedding.type == WeightType.F32


def test_redundant_and_unused_are_reported(tmp_path: Path) -> None:
    file = tiny(some__new__key=1)
    file.tensors.append(Tensor("blk.0.attn.rotary_emb.inv_freq", [4]))
    notes = load(tmp_path, file).notes
    assert len(notes) == 2 and "llama.some.new.key" in notes[0] and "rotary_emb" in notes[1]


@pytest.mark.parametrize(
    "extra",
    ["blk.0.attn_q.bias", "blk.1.attn_output.bias", "blk.0.attn_q_norm.weight", "blk.0.ffn_gate_inp.weight",
     "blk.0.ffn_up.scale", "blk.2.attn_norm.weight", "rope_factors_long.weight"],
)  # fmt: skip
def test_tensors_without_use_are_refused(tmp_path: Path, extra: str) -> None:
    """Leaving a bias or a norm out would give plausible, wrong text."""
    file = tiny()
    file.tensors.append(Tensor(extra, [32]))
    with pytest.raises(UnsupportedError, match=extra):
        load(tmp_path, file)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_every_missing_or_misshapen_tensor_is_named(tmp_path: Path, arch: str) -> None:
    for i, victim in enumerate(tiny(arch).tensors):
        name = str(victim.name)
        file = tiny(arch)
        del file.tensors[i]
        with pytest.raises(FormatError, match=f"{name}: the tensor is missing"):
            load(tmp_path, file)
        file = tiny(arch)
        file.tensors[i] = Tensor(name, [*victim.dims, 2])
        with pytest.raises(FormatError, match=name):
            load(tmp_path, file)
        file = tiny(arch)
        file.tensors[i] = Tensor(name, [victim.dims[0] + 32, *victim.dims[1:]])
        with pytest.raises(FormatError, match=name):
            load(tmp_path, file)


@pytest.mark.parametrize(("ctx", "factor"), [(32, 2.0), (33, 7.0)])
def test_longrope_has_frequencies_for_long_sessions(tmp_path: Path, ctx: int, factor: float) -> None:
    file = tiny(tok__model="llama", rope__scaling__type="longrope", rope__scaling__original_context_length=32)
    for name, value in (("short", 2.0), ("long", 7.0)):
        file.tensors.append(Tensor(f"rope_factors_{name}.weight", [4], 0, np.full(4, value, np.float32).tobytes()))
    (tmp_path / "m.gguf").write_bytes(file.build())
    llm = polykv.load(tmp_path / "m.gguf", backend="ref", ctx=ctx)
    for rope in (*(layer.rope for layer in llm.config.layers), *llm.engine.runner.transformer.ropes):
        assert rope.freq_factors is not None and rope.freq_factors.tolist() == [factor] * 4
        assert rope.long_factors is None


def test_notes_of_model_and_tokenizer_are_shown(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(tiny(some__key=1, tok__model="llama", tok__add_eos_token=True).build())
    llm = polykv.load(tmp_path / "m.gguf", backend="ref")
    for part in ("llama.some.key", "add_eos_token"):
        assert sum(part in note for note in llm.notes) == 1
    assert llm.report()["model"]["notes"] == list(llm.notes)


def test_unknown_architectures(tmp_path: Path) -> None:
    for arch in ("mamba", "", "llama\n", "x" * 10000):
        file = Gguf([("general.architecture", arch)])
        with pytest.raises(UnsupportedError, match="architecture") as e:
            load(tmp_path, file)
        assert len(str(e.value)) < 400 and str(e.value).isprintable()
    for file in (Gguf(), Gguf([("general.architecture", 1)])):
        with pytest.raises(FormatError, match=r"general\.architecture"):
            load(tmp_path, file)


@pytest.mark.parametrize("tokens", ["abcd", "abcdef"])
def test_one_token_per_row_of_the_embedding(tmp_path: Path, tokens: str) -> None:
    """The rest of the vocabulary is checked by `polykv.text` (tests/text/test_metadata.py)."""
    with pytest.raises(FormatError, match=f"{len(tokens)} tokens, but token_embd.weight has 5 rows"):
        load(tmp_path, tiny(tok__tokens=list(tokens)))


def test_check_tensors_names_the_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tiny()
    load(tmp_path, file)
    command = ["inspect", str(tmp_path / "m.gguf"), "--check-tensors", "--json"]
    assert cli.run(command) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["faults"] == []
    x = np.zeros((64, 32), np.float32)
    x[3, 5] = np.inf
    next(t for t in file.tensors if t.name == "blk.1.ffn_up.weight").data = x.tobytes()
    (fault,) = nonfinite(load(tmp_path, file).gguf)
    assert (fault.name, fault.bad, fault.total, fault.first_row) == ("blk.1.ffn_up.weight", 1, 2048, 3)
    assert cli.run(command) == 2
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["faults"] == [str(fault)]
    assert "1 of 20 tensors hold NaN" in err


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    m = load_model(smollm2_path)
    c = m.config
    assert (c.embd, c.vocab, c.context, len(c.layers), c.tied_head) == (576, 49152, 8192, 30, True)
    layer = c.layers[7]
    assert (layer.n_heads, layer.n_kv, layer.head_dim, layer.ffn, layer.mixer) == (9, 3, 64, 1536, Mixer.FULL)
    assert layer.rope.interleaved and layer.rope.base == 100000.0 and layer.scale == 0.125
    assert m.weight_bytes == 96_576_768 and m.notes == ()


@pytest.mark.model
def test_gemma3(gemma3_path: Path) -> None:
    m = load_model(gemma3_path)
    c = m.config
    assert (c.embd, c.vocab, c.context, len(c.layers), c.tied_head) == (640, 262144, 32768, 18, True)
    assert [i for i, layer in enumerate(c.layers) if layer.mixer == Mixer.FULL] == [5, 11, 17]
    assert {layer.window for layer in c.layers} == {0, 512}
    assert c.layers[0].rope.base == 10000.0 and c.layers[5].rope.base == 1e6
    types = {w.type.name for a in m.attention for w in (a.wq, a.wk, a.wv, a.wo)} | {f.down.type.name for f in m.mlp}
    assert types >= {"Q5_0", "Q8_0", "Q4_K", "Q6_K"} and m.notes == ()
