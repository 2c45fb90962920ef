"""Key biases of the Qwen2.5 class: found without a text, told, and answered with more bits where they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_llm import tiny_llm
from tiny_models import BACKENDS, one_shot, random_ids, tiny_model, tiny_path, tiny_runner

import polykv
from polykv import cli
from polykv.cache.codecs import codec, parse_tiers, tiers_text
from polykv.config import CacheConfig
from polykv.errors import ConfigError
from polykv.model.gguf import read_gguf
from polykv.model.key_bias import AUTO, asked_tiers, error, protect_keys, sample_keys
from polykv.model.loader import Model, load_model
from polykv.ops import load

# Lengths that were reported for Qwen2.5-7B: the bias, and the rest of a key.
SPIKE = 600 / 22


def spiked(layers: tuple[int, ...], ratio: float = SPIKE) -> Model:
    """The tiny qwen2 with a bias in two channels of every kv head of some layers, `ratio` times the rest of a key."""
    model = tiny_model("qwen2")
    ops, attention = load("ref"), list(model.attention)
    for i in layers:
        attention[i] = replace(attention[i], k_bias=spike(ops, model, i, ratio))
    return replace(model, attention=tuple(attention))


def spike(ops, model: Model, i: int, ratio: float) -> np.ndarray:
    w = model.attention[i]
    plain = sample_keys(ops, w, model.config.layers[i]).plain
    length = np.sqrt((plain**2).sum(axis=2).mean(axis=0))
    bias = np.zeros((w.n_kv, w.head_dim), np.float32)
    bias[:, 3], bias[:, 12] = -0.8 * ratio * length, 0.6 * ratio * length
    return bias.reshape(-1)


@pytest.fixture
def spiked_file(tmp_path: Path) -> Path:
    """The same as a file, spikes in the first and the last layer."""
    path = tmp_path / "spiked.gguf"
    data = bytearray(tiny_path("qwen2").read_bytes())
    gguf, model = read_gguf(tiny_path("qwen2")), spiked((0, 2))
    for i in (0, 2):
        info, bias = gguf.info(f"blk.{i}.attn_k.bias"), model.attention[i].k_bias
        assert bias is not None and info.nbytes == bias.nbytes
        data[info.offset : info.offset + info.nbytes] = bias.astype("<f4").tobytes()
    path.write_bytes(data)
    return path


def protect(model: Model, kv: str, backend: str = "cpu") -> tuple[str, dict[int, tuple[str, str]]]:
    """The tiers, and (asked, used) of the layers that were checked."""
    asked, free = asked_tiers(kv, len(model.config.layers))
    used, checks = protect_keys(load(backend), model, asked, free, CacheConfig.block_size)
    return tiers_text(used), {c.layer: (c.asked, c.tier) for c in checks}


@pytest.mark.parametrize("backend", BACKENDS)
def test_auto_raises_k_where_the_bias_is(backend: str) -> None:
    for layers in ((0,), (2,), (0, 2)):
        tiers, checks = protect(spiked(layers), "auto", backend)
        used = [str(t) for t in parse_tiers(tiers, 3)]
        assert used == ["f16/turbo3" if i in layers else "q8_0/turbo3" for i in range(3)]
        assert set(checks) == {0, 1, 2}


@pytest.mark.parametrize("name", ("llama", "gemma3", "qwen2", "qwen2_rope_yarn"))
def test_without_need_auto_is_the_default(name: str) -> None:
    tiers, checks = protect(tiny_model(name), AUTO)
    assert tiers == polykv.llm.DEFAULT_KV
    assert bool(checks) == name.startswith("qwen2")
    assert tiny_llm(name, kv=AUTO).kv == polykv.llm.DEFAULT_KV


@pytest.mark.parametrize(
    ("kv", "want"),
    [
        ("auto:turbo3/turbo3", "q8_0/turbo3,1=turbo3/turbo3"),
        ("auto:q8_0/q8_0", "f16/q8_0,1=q8_0/q8_0"),
        # Fewer bits for K than for V are never chosen.
        ("auto:turbo3/q4_0", "q8_0/q4_0"),
        ("auto:f16", "f16/f16"),
        (" auto : turbo3/turbo3 ,0=q4_0/turbo3", "turbo3/turbo3,0=q4_0/turbo3,2=q8_0/turbo3"),
        ("auto,0-2=turbo3", "turbo3/turbo3"),
        ("turbo3/turbo3", "turbo3/turbo3"),
    ],
)
def test_what_is_asked_for_and_what_is_used(kv: str, want: str) -> None:
    tiers, _ = protect(spiked((0, 2)), kv)
    assert parse_tiers(tiers, 3) == parse_tiers(want, 3)


@pytest.mark.parametrize("kv", ("auto:", "auto:nothing", "automatic", "auto/turbo3", "auto,9=f16", "auto:auto"))
def test_what_is_no_tier(kv: str) -> None:
    with pytest.raises(ConfigError):
        asked_tiers(kv, 3)


def test_the_measure_is_the_error_of_the_type() -> None:
    """Without a bias it is what docs/FORMATS.md says of a type; with one it grows with the square of its length."""
    model, ops = tiny_model("qwen2"), load("ref")
    w, layer = model.attention[0], model.config.layers[0]
    plain = sample_keys(ops, replace(w, k_bias=None), layer)
    np.testing.assert_array_equal(plain.biased, plain.plain)
    assert 0.02 < error(ops, codec("turbo3"), plain) < 0.05
    for ratio in (10.0, 100.0):
        keys = sample_keys(ops, replace(w, k_bias=spike(ops, model, 0, ratio)), layer)
        assert 0.01 < error(ops, codec("turbo3"), keys) / ratio**2 < 0.06
        assert error(ops, codec("f16"), keys) < 1e-5 * ratio


@pytest.mark.parametrize("backend", BACKENDS)
def test_centered_keys_are_measured_less_their_mean(backend: str) -> None:
    """As neighbours in a unit, whose mean has the bias; what is left is what rope turns within 64 positions."""
    model, ops = spiked((0, 2), 8.0), load(backend)
    for i in (0, 2):
        keys = sample_keys(ops, model.attention[i], model.config.layers[i])
        assert error(ops, codec("turbo4+c"), keys) < error(ops, codec("turbo4"), keys) / 20
    tiers, checks = protect(model, "auto:turbo4+c/turbo3,sink=4", backend)
    assert tiers == "turbo4+c/turbo3,sink=4" and set(checks) == {0, 1, 2}
    assert protect(model, "auto:turbo4/turbo3", backend)[0] == "q8_0/turbo3,1=turbo4/turbo3"


def test_what_auto_chooses_is_better() -> None:
    """Against float32 keys, the model with spikes."""
    model, ids = spiked((0, 2)), random_ids(60)

    def logits(kv: str) -> np.ndarray:
        runner = tiny_runner("qwen2", "cpu", kv)
        return one_shot(type(runner)(runner.transformer.ops, model, runner.pool, runner.transformer.activations), ids)

    want = logits("f32")
    tiers, _ = protect(model, "auto:turbo3/f16")
    assert np.abs(logits(tiers) - want).mean() < 0.5 * np.abs(logits("turbo3/f16") - want).mean()


def test_a_session_tells_and_reports(spiked_file: Path) -> None:
    assert load_model(spiked_file).attention[0].k_bias is not None
    low = polykv.load(spiked_file, kv="turbo3/turbo3", ctx=256)
    notes = [n for n in low.notes if "key bias" in n]
    assert [n.split(":")[0] for n in notes] == ["layer 0", "layer 2"] and all("--kv auto" in n for n in notes)
    llm = polykv.load(spiked_file, kv="auto", ctx=256)
    assert llm.kv == "f16/turbo3,1=q8_0/turbo3"
    assert not [n for n in llm.notes if "key bias" in n]
    report = llm.report()
    assert [x["kv"] for x in report["layers"]] == ["f16/turbo3", "q8_0/turbo3", "f16/turbo3"]
    assert [x["ratio"] > 20 for x in report["key_bias"]] == [True, False, True]
    assert llm.generate("What?", max_tokens=3).tokens


def test_plan_shows_why(spiked_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "-m", str(spiked_file), "--kv", "auto", "--json"]) == 0
    out, err = capsys.readouterr()
    got = json.loads(out.splitlines()[-1])
    assert [x["tier"] for x in got["layers"]] == ["f16/turbo3", "q8_0/turbo3", "f16/turbo3"]
    assert "keys with a bias" in out and "f16/turbo3" in out and "key bias" not in err
    assert cli.run(["plan", "-m", str(spiked_file), "--kv", "turbo3/turbo3"]) == 0
    assert capsys.readouterr().err.count("--kv auto gives K more bits") == 2
