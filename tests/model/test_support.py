"""What a backend cannot run is said before anything is allocated: by load, plan, tiers and doctor, with the reason."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_base import HOSTS
from gguf_bytes import head_of, tiny
from tiny_models import tiny_path

import polykv
from polykv import cli
from polykv.cache.codecs import CODECS, codec, parse_tiers
from polykv.cache.plan import plan_memory
from polykv.config import CacheConfig
from polykv.errors import UnsupportedError
from polykv.fast.cpu import linear_code
from polykv.model.loader import load_model
from polykv.model.support import check_model, reasons
from polykv.ops import load
from polykv.ref import weights
from polykv.types import WeightType

REASON = "kernels need an even head_dim of at least 16"


@pytest.fixture
def small_heads(tmp_path: Path) -> str:
    """A model with a head_dim of 8."""
    path = tmp_path / "small.gguf"
    path.write_bytes(tiny(tok__model="llama").build())
    return str(path)


@pytest.fixture
def nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("memory was taken")

    for name in HOSTS:
        module = sys.modules["polykv.ref" if name == "ref" else "polykv.fast.cpu"]
        monkeypatch.setattr(module, "kv_alloc", refuse)


@pytest.mark.parametrize("name", HOSTS)
def test_limits_are_what_the_backend_really_does(name: str) -> None:
    """Supported: storage can be allocated. Refused: it cannot, with the same words."""
    ops = load(name)
    for k in CODECS.values():
        for dim in (1, 8, 16, 20, 33, 40, 64, 72, 80, 96, 100, 128, 256, 512):
            for block in (8, 12, 64):
                reason = ops.supports_kv(k, codec("f16"), dim, block)
                assert reason == ops.supports_kv(codec("f16"), k, dim, block)
                if reason is None:
                    assert ops.kv_alloc(k, 1, 1, dim, block).n_blocks == 1
                else:
                    with pytest.raises(UnsupportedError, match=reason):
                        ops.kv_alloc(k, 1, 1, dim, block)
    assert [kind for kind in WeightType if ops.supports_weight(kind) is not None] == []


@pytest.mark.parametrize("name", HOSTS)
def test_a_rotated_type_of_other_width_is_refused_as_k_and_as_v(name: str) -> None:
    five = dataclasses.replace(codec("turbo3"), name="turbo5", bits=5)
    ops = load(name)
    for pair in ((five, codec("f16")), (codec("f16"), five)):
        assert ops.supports_kv(*pair, 64, 8) is not None


@pytest.mark.usefixtures("nothing_is_allocated")
def test_load_refuses_before_memory_is_taken(small_heads: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        polykv.load(small_heads, kv="q8_0/turbo3,1=f16")
    assert str(error.value) == (
        f"the backend cpu cannot run this: K/V as q8_0/turbo3 with head_dim 8: {REASON} (layer 0); "
        f"K/V as f16/f16 with head_dim 8: {REASON} (layer 1); --backend ref (backend='ref') runs it"
    )


def test_the_other_backend_runs_it(small_heads: str) -> None:
    assert len(polykv.load(small_heads, backend="ref").generate([1], max_tokens=2, ignore_eog=True).tokens) == 2


@pytest.mark.parametrize(
    ("arch", "dim", "padded"),
    [
        ("llama", 72, ["K as q8_0: head_dim 72 is padded to 96"]),
        ("gemma3", 72, ["K as q8_0: head_dim 72 is padded to 96"]),
        ("llama", 100, ["K as q8_0: head_dim 100 is padded to 128", "V as turbo3: head_dim 100 is padded to 128"]),
    ],
)
def test_any_even_head_dim_runs_and_padding_is_said(tmp_path: Path, arch: str, dim: int, padded: list[str]) -> None:
    path, found = head_of(tmp_path, dim, arch), {}
    for name in HOSTS:
        llm = polykv.load(path, backend=name, kv="q8_0/turbo3", activations="f32")
        assert [sum(start in note for note in llm.notes) for start in padded] == [1] * len(padded)
        found[name] = llm.logits([1, 2, 3, 4, 2] * 6)
    assert np.std(found["ref"]) > 0.01
    np.testing.assert_allclose(found["cpu"], found["ref"], rtol=0, atol=1e-3 * np.abs(found["ref"]).max())


def test_padding_of_plain_types_is_said_where_it_is(tmp_path: Path) -> None:
    """Files have as many values as a head has; only memory of `cpu` has more."""
    runs = {name: polykv.load(head_of(tmp_path, 72), backend=name, kv="f16") for name in HOSTS}
    assert runs["ref"].notes == ()
    assert any("V as f16: head_dim 72 is padded to 80" in note for note in runs["cpu"].notes)


@pytest.mark.usefixtures("nothing_is_allocated")
@pytest.mark.parametrize("command", (["plan"], ["tiers"], ["generate", "x"], ["ask", "-q", "x"]))
def test_commands_refuse_before_memory_is_taken(
    command: list[str], small_heads: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*command, "-m", small_heads]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("polykv: error: the backend cpu cannot run this: K/V as ") and REASON in err
    assert "all layers" in err


def test_plan_takes_a_backend(small_heads: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plan", "-m", small_heads, "--backend", "ref", "--ctx", "32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["nbytes"] > 0


def test_weights_without_a_kernel_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_path("llama_rope_llama3", "q8_0")
    model, cache = load_model(path), CacheConfig(parse_tiers("f16", 3))
    for name in HOSTS:
        assert reasons(load(name), model, cache) == []
    monkeypatch.delitem(linear_code.UNPACKERS, WeightType.Q8_0)
    # 7 matrices of 3 layers, the embedding, and an output matrix of its own.
    with pytest.raises(UnsupportedError, match=r"23 matrices of type Q8_0: no kernel for Q8_0; --backend ref"):
        polykv.load(path)
    monkeypatch.delitem(weights.DECODERS, WeightType.Q8_0)
    with pytest.raises(UnsupportedError, match=r"no kernel for Q8_0; no backend runs it"):
        check_model(load("cpu"), model, cache)
    with pytest.raises(UnsupportedError, match=r"the backend ref cannot run this: .* no decoder for Q8_0"):
        polykv.load(path, backend="ref")


@pytest.mark.usefixtures("nothing_is_allocated")
def test_planning_asks_too(small_heads: str) -> None:
    with pytest.raises(UnsupportedError, match=REASON):
        plan_memory(load_model(small_heads).config, parse_tiers("f16", 2), ctx=8)


def test_doctor_says_what_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def checks() -> dict[str, Any]:
        assert cli.run(["doctor", "--json"]) == 0
        return {c["name"]: c for c in json.loads(capsys.readouterr().out.splitlines()[-1])["checks"]}

    found = checks()
    assert found["ref runs"]["state"] == "ok"
    assert "head_dim 32, 40, 64" in found["ref runs"]["text"]
    text = found["cpu runs"]["text"]
    assert found["cpu runs"]["state"] == "ok"
    for backend in HOSTS:
        assert f"any pair of {', '.join(CODECS)}, q8_0+r, " in found[f"{backend} runs"]["text"]
        assert "; head_dim 32, " in found[f"{backend} runs"]["text"]
    assert "IQ4_XS" in text
    monkeypatch.delitem(linear_code.UNPACKERS, WeightType.IQ4_XS)
    assert "no kernel for IQ4_XS" in checks()["cpu runs"]["text"]
