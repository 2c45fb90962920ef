"""Everything that falls back or is reduced is one of `LLM.notes`, and with them in reports and --strict."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from tiny_llm import tiny_llm
from tiny_models import tiny_model, tiny_path

import polykv
from polykv import notes as of_session
from polykv.errors import PolyKVError
from polykv.fast import kernel_store
from polykv.fast.cpu import simd_core
from polykv.types import Activations


def notes(**options) -> str:
    return "\n".join(tiny_llm(**{"kv": "f16"} | options).notes)


def test_a_plain_session_has_none() -> None:
    llm = tiny_llm(ctx=128, chat=True, kv="f16")
    llm.generate("x", max_tokens=1)
    assert llm.notes == ()
    assert llm.report()["model"]["notes"] == []


def test_context_that_was_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polykv.llm.DEFAULT_CONTEXT", 100)
    limit = tiny_llm().config.context
    assert f"the context is 100 tokens, of {limit:,}" in notes(ctx=None)
    assert notes(ctx=100) == ""


@pytest.mark.parametrize("use", ["generate", "stream", "chat", "pool"])
def test_text_for_a_model_without_a_chat_template(use: str) -> None:
    llm = tiny_llm(kv="f16")
    llm.generate("x", raw=True, max_tokens=1)
    llm.logits([5, 6])
    assert llm.notes == ()
    for _ in range(2):
        {
            "generate": lambda: llm.generate("x", max_tokens=1),
            "stream": lambda: list(llm.stream("x", max_tokens=1)),
            "chat": lambda: llm.chat(),
            "pool": lambda: llm.pool("A text."),
        }[use]()
    assert len(llm.notes) == 1
    assert "no chat template" in llm.notes[0]
    assert llm.report()["model"]["notes"] == list(llm.notes)


def test_float_weights_that_int8_activations_do_not_touch() -> None:
    assert "F16: activations q8 has no effect" in notes(activations="q8")
    assert notes(activations="f32") == ""
    whole = polykv.load(tiny_path("llama", "q8_0"), activations="q8", ctx=64, kv="f16")
    assert not any("activations" in note for note in whole.notes)


def test_float_weights_that_take_no_graph_on_a_gpu() -> None:
    def said(weights: str) -> str:
        model, ops = tiny_model("llama", weights), SimpleNamespace(name="cuda")
        llm = SimpleNamespace(activations=Activations.Q8, model=model, ops=ops)
        return "\n".join(of_session._activations(llm))  # type: ignore[arg-type]

    assert "graphs are made of layers whose matrices are all quantized" in said("f16")
    assert said("q8_0") == ""


def test_padding_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tiny models have heads of 16 values: a block of q8_0 is 32, a group of turbo3 as small as the head.
    assert notes(kv="q8_0/turbo3").startswith(
        "K as q8_0: head_dim 16 is padded to 32 in 3 layers, which costs 100% more"
    )
    assert "V as" not in notes(kv="q8_0/turbo3")
    monkeypatch.setattr("polykv.notes._stored", lambda arena: 128)
    assert "V as turbo3: head_dim 16 is padded to 128" in notes(kv="q8_0/turbo3")


def test_kernels_that_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_store, "cache_dir", lambda: None)
    assert "compiled anew in every process" in notes()
    assert notes(backend="ref") == ""
    monkeypatch.undo()
    monkeypatch.setattr(kernel_store, "unsaved", ["kernel: No space left on device"])
    assert "No space left" in notes()


def test_a_processor_without_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simd_core, "level", lambda: simd_core.Level.PORTABLE)
    assert "portable kernels" in notes()


@pytest.mark.parametrize("prompt", [5, None, b"bytes", {"role": "user", "content": "x"}, 1.5])
def test_prompts_of_the_wrong_type(prompt: object) -> None:
    with pytest.raises(PolyKVError, match="a prompt is"):
        tiny_llm().generate(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.generate([2**70]),
        lambda llm: llm.generate([{"role": "user", "content": None}]),
        lambda llm: llm.generate([{"role": "user", "content": 5}]),
        lambda llm: llm.logits("text"),
        lambda llm: llm.pool(None),
        lambda llm: llm.pool(b"bytes"),
        lambda llm: llm.pool("x", system=5),
        lambda llm: llm.pool("x").ask([5]),
        lambda llm: llm.pool("x").ask(None),
        lambda llm: llm.chat().ask(5),
        lambda llm: llm.chat().trim(1.5),
        lambda llm: tiny_llm(ctx="5"),
        lambda llm: tiny_llm(ctx=1.5),
        lambda llm: tiny_llm(chunk=True),
        lambda llm: tiny_llm(threads="2"),
        lambda llm: tiny_llm(cache_tokens="1"),
        lambda llm: tiny_llm(kv=None),
    ],
)
def test_arguments_of_the_wrong_type(use) -> None:
    llm = tiny_llm(chat=True)
    with pytest.raises(PolyKVError):
        use(llm)
    llm.engine.sweep()
    assert not llm.engine.busy


def test_what_a_gpu_did_differently() -> None:
    """More memory than was planned, and heads that one kernel does not take."""
    layers = [SimpleNamespace(n_heads=71, n_kv=1), SimpleNamespace(n_heads=32, n_kv=1)]
    llm = SimpleNamespace(
        device_plan=SimpleNamespace(parts={"steps": 1_000_000}),
        cache=SimpleNamespace(counters=Counter(grown=2)),
        config=SimpleNamespace(layers=layers),
        ops=SimpleNamespace(held=lambda weights, stack: {"steps": 3_000_000}),
        model=SimpleNamespace(weights=None),
        engine=SimpleNamespace(runner=SimpleNamespace(transformer=SimpleNamespace(stack=None))),
    )
    grown, wide, steps = of_session._device(llm)  # type: ignore[arg-type]
    assert grown.startswith("K/V grew 2 times") and wide.startswith("1 layers have more than 32 query heads")
    assert steps == "steps took 2 MB of the GPU more than was planned (1 MB)"
    llm.device_plan = None
    assert list(of_session._device(llm)) == []  # type: ignore[arg-type]
