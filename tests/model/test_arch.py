"""Metadata to configuration: defaults, per-layer arrays, special cases, and everything that must be refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_bytes import BOOL, F32, I32, STRING, U32, Gguf, Tensor, array, scalar, tiny

from polykv.config import Mixer, ModelConfig, RopeScaling
from polykv.errors import FormatError, PolyKVError, UnsupportedError
from polykv.model.arch import ARCHS
from polykv.model.arch._meta import Meta
from polykv.model.gguf import read_gguf
from polykv.types import Glu


def config(tmp_path: Path, file: Gguf) -> ModelConfig:
    path = tmp_path / "m.gguf"
    path.write_bytes(file.build())
    gguf = read_gguf(path)
    arch = str(gguf.metadata["general.architecture"])
    return ARCHS[arch].config(Meta(gguf, arch))


def test_llama_defaults(tmp_path: Path) -> None:
    c = config(tmp_path, tiny())
    assert (c.arch, c.name, c.embd, c.vocab, c.context, c.tied_head) == ("llama", "m", 32, 5, 64, True)
    assert c.eps == pytest.approx(1e-5) and c.embed_scale == 1.0 and c.final_softcap == 0.0
    for layer in c.layers:
        assert (layer.mixer, layer.n_heads, layer.n_kv, layer.head_dim, layer.ffn) == (Mixer.FULL, 4, 2, 8, 64)
        assert layer.scale == pytest.approx(8**-0.5) and layer.window == 0 and layer.glu == Glu.SILU
        assert not layer.qk_norm and not layer.post_norms and layer.softcap == 0.0
        r = layer.rope
        assert (r.base, r.n_rot, r.interleaved, r.scaling) == (10000.0, 8, True, RopeScaling.NONE)
        # One object for all layers: a step computes its angles once.
        assert r is c.layers[0].rope


def test_head_count_kv_defaults_to_head_count(tmp_path: Path) -> None:
    assert config(tmp_path, tiny(attention__head_count_kv=None)).layers[0].n_kv == 4


def test_per_layer_arrays(tmp_path: Path) -> None:
    arrays = {"attention__head_count_kv": [2, 4], "feed_forward_length": [64, 96], "attention__head_count": [4, 8]}
    c = config(tmp_path, tiny(**arrays, attention__key_length=8))
    assert [(a.n_heads, a.n_kv, a.ffn) for a in c.layers] == [(4, 2, 64), (8, 4, 96)]


def test_name_is_safe_to_print(tmp_path: Path) -> None:
    file = tiny()
    file.kv.append(("general.name", "\x1b[31mred\nname"))
    assert config(tmp_path, file).name == " [31mred name"


def test_rope_scalings(tmp_path: Path) -> None:
    linear = config(tmp_path, tiny(rope__scaling__type="linear", rope__scaling__factor=4.0)).layers[0].rope
    assert (linear.scaling, linear.factor) == (RopeScaling.LINEAR, 4.0)
    old = config(tmp_path, tiny(rope__scale_linear=2.0)).layers[0].rope
    assert (old.scaling, old.factor) == (RopeScaling.LINEAR, 2.0)
    none = config(tmp_path, tiny(rope__scaling__type="none", rope__scaling__factor=2.0)).layers[0].rope
    assert (none.scaling, none.factor) == (RopeScaling.NONE, 1.0)
    keys: dict[str, Any] = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    yarn = config(tmp_path, tiny(**keys)).layers[0].rope
    assert (yarn.scaling, yarn.factor, yarn.original_context, yarn.attn_factor) == (RopeScaling.YARN, 4.0, 64, None)
    keys |= {"rope__scaling__original_context_length": 16, "rope__scaling__attn_factor": 0.5}
    keys |= {"rope__scaling__yarn_beta_fast": 16.0, "rope__scaling__yarn_beta_slow": 2.0}
    yarn = config(tmp_path, tiny(**keys)).layers[0].rope
    assert (yarn.original_context, yarn.beta_fast, yarn.beta_slow) == (16, 16.0, 2.0)
    assert yarn.attn_factor == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    long = tiny(rope__scaling__type="longrope", rope__scaling__factor=4.0, rope__scaling__attn_factor=1.25)
    for which, value in (("short", 1.0), ("long", 3.0)):
        long.tensors.append(Tensor(f"rope_factors_{which}.weight", [4], 0, np.full(4, value, np.float32).tobytes()))
    rope = config(tmp_path, long).layers[0].rope
    assert (rope.scaling, rope.attn_factor) == (RopeScaling.LONGROPE, 1.25)
    assert rope.freq_factors is not None and rope.long_factors is not None
    assert rope.freq_factors.tolist() == [1.0] * 4 and rope.long_factors.tolist() == [3.0] * 4


def test_gemma3_defaults(tmp_path: Path) -> None:
    """Keys that the real 270M file does not have: base of sliding layers, pattern, rotated dims."""
    file = tiny("gemma3", rope__freq_base=1e6, rope__scaling__type="linear", rope__scaling__factor=8.0)
    c = config(tmp_path, file)
    assert c.embed_scale == float(np.float32(math.sqrt(32))) and c.tied_head and c.final_softcap == 0.0
    first = c.layers[0]
    assert (first.mixer, first.window, first.glu) == (Mixer.SLIDING, 16, Glu.GELU_TANH)
    assert first.qk_norm and first.post_norms and first.scale == pytest.approx(8**-0.5)
    assert (first.rope.base, first.rope.scaling, first.rope.factor) == (10000.0, RopeScaling.NONE, 1.0)
    assert not first.rope.interleaved


@pytest.mark.parametrize(
    ("pattern", "slides"),
    [
        (None, [True] * 5 + [False] + [True] * 2),
        (2, [True, False] * 4),
        (1, [False] * 8),
        (array(BOOL, [1, 1, 0, 1, 1, 1, 0, 0]), [True, True, False, True, True, True, False, False]),
        (array(I32, [0, 1] * 4), [False, True] * 4),
    ],
)
def test_gemma3_pattern(tmp_path: Path, pattern: Any, slides: list[bool]) -> None:
    file = tiny("gemma3", block_count=8, attention__sliding_window_pattern=pattern, rope__freq_base=1e6,
                rope__freq_base_swa=5000.0, rope__scaling__type="linear", rope__scaling__factor=8.0)  # fmt: skip
    layers = config(tmp_path, file).layers
    assert [layer.mixer == Mixer.SLIDING for layer in layers] == slides
    assert [layer.window for layer in layers] == [16 if s else 0 for s in slides]
    for layer, s in zip(layers, slides, strict=True):
        assert (layer.rope.base, layer.rope.factor) == ((5000.0, 1.0) if s else (1e6, 8.0))
    assert len({id(layer.rope) for layer in layers}) == len(set(slides))


def test_gemma3_27b_query_scale(tmp_path: Path) -> None:
    """62 layers: 1/sqrt(embd/heads), not 1/sqrt(head_dim). Numbers of the 27B model."""
    big = {"embedding_length": 5376, "attention__head_count": 32, "attention__key_length": 128,
           "attention__value_length": 128, "attention__head_count_kv": 16}  # fmt: skip
    for n, want in ((62, 168), (61, 128)):
        file = tiny("gemma3", block_count=n, **big)
        file.tensors[0] = Tensor("token_embd.weight", [5376, 5])
        assert config(tmp_path, file).layers[0].scale == pytest.approx(want**-0.5)


def test_gemma3_softcaps(tmp_path: Path) -> None:
    c = config(tmp_path, tiny("gemma3", final_logit_softcapping=30.0, attn_logit_softcapping=50.0))
    assert c.final_softcap == 30.0 and {layer.softcap for layer in c.layers} == {50.0}


NAN, INF = math.nan, math.inf
BAD: list[tuple[str, dict[str, Any]]] = [
    *[("embedding_length", {"embedding_length": v}) for v in (None, 0, 2**31, "32", 32.0, True, [32])],
    *[("block_count", {"block_count": v}) for v in (None, 0, 10**9, scalar(I32, -1))],
    *[("attention.head_count", {"attention__head_count": v}) for v in (None, 0, 2**31, [4, 4, 4], [4], [4, 0])],
    *[("head_count_kv", {"attention__head_count_kv": v}) for v in (0, 3, 8, [2], [2, 3], [2, 0])],
    *[("key_length", {"attention__key_length": v}) for v in (0, 2**31, "8")],
    ("key_length", {"embedding_length": 33}),
    ("key_length", {"embedding_length": 32, "attention__head_count": 3, "attention__head_count_kv": 1}),
    *[("dimension_count", {"rope__dimension_count": v}) for v in (0, 7, 10, 2**31)],
    *[("freq_base", {"rope__freq_base": v}) for v in (0.0, -1.0, NAN, INF, 1.0, "1e4")],
    *[("factor", {"rope__scaling__type": "linear", "rope__scaling__factor": v}) for v in (0.0, -2.0, NAN, INF)],
    *[("factor", {"rope__scaling__type": "yarn", "rope__scaling__factor": v}) for v in (0.0, NAN)],
    ("original_context_length", {"rope__scaling__type": "yarn", "rope__scaling__original_context_length": 0}),
    *[("yarn_ext_factor", {"rope__scaling__type": "yarn", "rope__scaling__yarn_ext_factor": v}) for v in (0.5, NAN)],
    *[("context_length", {"context_length": v}) for v in (None, 0, scalar(I32, -5))],
    *[("epsilon", {"attention__layer_norm_rms_epsilon": v}) for v in (None, 0.0, -1e-5, NAN, INF, 2.0)],
    *[("feed_forward_length", {"feed_forward_length": v}) for v in (None, 0, [64], [64, 0], [64.0, 64.0])],
    *[("vocab_size", {"vocab_size": v}) for v in (4, 6, 0)],
]
BAD_GEMMA: list[tuple[str, dict[str, Any]]] = [
    *[("sliding_window", {"attention__sliding_window": v}) for v in (None, 0, scalar(I32, -512), "x")],
    *[("pattern", {"attention__sliding_window_pattern": v}) for v in (0, [True], [True] * 3, [2, 1], "x", [0.0, 1.0])],
    *[("freq_base_swa", {"rope__freq_base_swa": v}) for v in (0.0, NAN)],
    *[("softcapping", {"final_logit_softcapping": v}) for v in (0.0, -1.0, NAN)],
    *[("softcapping", {"attn_logit_softcapping": v}) for v in (0.0, INF)],
]


@pytest.mark.parametrize(("where", "changes"), BAD, ids=lambda v: str(v)[:60])
@pytest.mark.parametrize("arch", list(ARCHS))
def test_lying_metadata(tmp_path: Path, arch: str, where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=where):
        config(tmp_path, tiny(arch, **changes))


@pytest.mark.parametrize(("where", "changes"), BAD_GEMMA, ids=lambda v: str(v)[:60])
def test_lying_gemma_metadata(tmp_path: Path, where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=where):
        config(tmp_path, tiny("gemma3", **changes))


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("values of 16", {"attention__value_length": 16}),
        ("scaling.type", {"rope__scaling__type": "dynamic"}),
        ("scaling.type", {"rope__scaling__type": 3}),
        ("expert_count", {"expert_count": 8}),
        ("clamp_kqv", {"attention__clamp_kqv": 8.0}),
        ("logit_scale", {"logit_scale": 2.0}),
        ("sliding_window", {"attention__sliding_window": 4096}),
        ("attn_logit_softcapping", {"attn_logit_softcapping": scalar(F32, 30.0)}),
    ],
)
def test_unsupported_settings(tmp_path: Path, where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=where):
        config(tmp_path, tiny(**changes))


@pytest.mark.parametrize("values", [[1.0] * 3, [1.0, 0.0, 1.0, 1.0], [1.0, -1.0, 1.0, 1.0], [1.0, NAN, 1.0, 1.0]])
def test_bad_frequency_factors(tmp_path: Path, values: list[float]) -> None:
    file = tiny()
    file.tensors.append(Tensor("rope_freqs.weight", [len(values)], 0, np.array(values, np.float32).tobytes()))
    with pytest.raises(FormatError, match=r"rope_freqs\.weight"):
        config(tmp_path, file)


def test_zero_of_an_unsupported_setting_is_fine(tmp_path: Path) -> None:
    """Converters write `expert_count = 0` into dense models."""
    assert config(tmp_path, tiny(expert_count=0, attention__clamp_kqv=0.0)).embd == 32


def test_errors_stay_typed_for_any_type_of_any_key(tmp_path: Path) -> None:
    """Each key in turn holds each kind of value; nothing but a typed error or a configuration comes out."""
    values = [-1, 0, 7, 2.5, NAN, True, "x", "", array(U32, []), array(STRING, ["x"]), array(F32, [NAN] * 2), [1, 2]]
    outcomes = set()
    for arch in ARCHS:
        for key, _ in tiny(arch).kv:
            if not str(key).startswith(arch):
                continue
            for v in values:
                value = scalar(I32, v) if isinstance(v, int) and not isinstance(v, bool) else v
                try:
                    config(tmp_path, tiny(arch, **{str(key).removeprefix(arch + ".").replace(".", "__"): value}))
                    outcomes.add("good")
                except PolyKVError as e:
                    assert str(e).isprintable()
                    outcomes.add("refused")
    assert outcomes == {"good", "refused"}
