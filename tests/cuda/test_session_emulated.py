"""Whole sessions on the CUDA backend, in the emulator: what a user of `polykv.load(backend="cuda")` has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pretend_cupy
import pytest
from gguf_bytes import head_of

import polykv
from polykv.cache.codecs import parse_tiers
from polykv.cache.plan import plan_memory
from polykv.cache.sequence import Sequence
from polykv.commands.output import Output
from polykv.commands.tiers import gather
from polykv.errors import NotFiniteError, UnsupportedError
from polykv.fast.cuda import shared_plan, shared_run
from polykv.fast.cuda.attend import _signs
from polykv.fast.cuda.attend_run import _levels
from polykv.fast.cuda.bound import _ids_of
from polykv.fast.cuda.compile import launch
from polykv.fast.cuda.forms import _form
from polykv.fast.cuda.fwht import _core
from polykv.model.loader import load_model
from polykv.model.runner import Logits
from polykv.ops import load

# The model's vocabulary has five letters.
DOCUMENT = "abcdebadcab" * 9
MODEL = {"context_length": 256, "tok__add_space_prefix": False}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: `g++ --version` fails")
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels, _signs, _form, _core, _ids_of):
        yield


@pytest.mark.parametrize(("dim", "kv"), [(64, "f16"), (72, "q8_0/turbo3")])
def test_logits_and_tokens(machine: None, tmp_path: Path, dim: int, kv: str) -> None:
    """Those of `ref`, as far as the bytes of levels allow; a token at a time, in batches, drawn."""
    model = head_of(tmp_path, dim, **MODEL)
    here, there = (polykv.load(model, backend=b, kv=kv, activations="f32", ctx=256) for b in ("ref", "cuda"))
    ids = here.tokenize(DOCUMENT)[:24]
    want, got = here.logits(ids), there.logits(ids)
    assert isinstance(got, np.ndarray)
    assert np.sqrt(((got - want) ** 2).mean() / want.var()) < (1e-3 if kv == "f16" else 2e-2)
    if kv != "f16":
        # Where levels are bytes, a token of near equal chances may be another.
        return
    greedy = {"max_tokens": 2, "ignore_eog": True}
    drawn = {**greedy, "temperature": 0.7, "top_k": 4, "repetition_penalty": 1.1, "seed": 5}
    for options in (greedy, drawn):
        of_here, of_there = (
            [g.tokens for g in llm.generate_many([ids[:5], ids[:9]], **options)] for llm in (here, there)
        )
        assert list(map(len, of_there)) == [2, 2] and of_there == of_here
    assert there.report()


def test_agents_of_one_document(machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cells of the document are lifted once; tokens are those of `ref`."""
    monkeypatch.setattr(shared_plan, "LEAST_CELLS", 64)
    monkeypatch.setattr(shared_plan, "LEAST_QUERIES", 5)
    model = head_of(tmp_path, 64, **MODEL)
    here, there = (polykv.load(model, backend=b, kv="f16", activations="q8", ctx=256) for b in ("ref", "cuda"))
    ids = here.tokenize(DOCUMENT)[:70]
    prompts = [[*ids, *ids[i : i + 2]] for i in range(6)]
    counted: list[int] = []
    monkeypatch.setattr(shared_run, "launch", lambda *a, **k: (counted.append(a[1][0]), launch(*a, **k)))
    for llm in (here, there):
        # The document's blocks are there when the agents come.
        list(llm.generate_many([ids], max_tokens=1))
    assert not counted
    want, got = ([g.tokens for g in llm.generate_many(prompts, max_tokens=2, ignore_eog=True)] for llm in (here, there))
    assert got == want and counted


def test_exact_cells_beside_codes(machine: None, tmp_path: Path) -> None:
    """A prompt that completes a unit, with centered keys and sinks: logits of `ref`."""
    model = head_of(tmp_path, 64, **MODEL)
    kv = "turbo4+c/turbo3,sink=4"
    here, there = (polykv.load(model, backend=b, kv=kv, activations="f32", ctx=256) for b in ("ref", "cuda"))
    ids = here.tokenize(DOCUMENT)[:65]
    want, got = here.logits(ids), there.logits(ids)
    assert np.sqrt(((got - want) ** 2).mean() / want.var()) < 2e-2


def test_a_context_smaller_than_a_block_has_room_for_agents(machine: None, tmp_path: Path) -> None:
    llm = polykv.load(head_of(tmp_path, 64, **MODEL), backend="cuda", kv="f16", ctx=16)
    document = Sequence(llm.cache)
    llm.engine.runner.step([(document, [1, 2, 3])])
    agents = [document.fork() for _ in range(3)]
    assert llm.engine.runner.step([(a, [1 + i]) for i, a in enumerate(agents)]).shape == (3, 5)


@pytest.mark.parametrize(("kv", "reason"), [("f32", "no attention over f32"), ("f32/q8_0,sink=4", "over f32")])
def test_what_is_not_there_is_refused_at_once(machine: None, tmp_path: Path, kv: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        polykv.load(head_of(tmp_path, 64, **MODEL), backend="cuda", kv=kv)


def test_tools_take_its_arrays_and_blocks(machine: None, tmp_path: Path) -> None:
    """Plans in blocks of its size, bytes of vectors, and what types are measured on, which it cannot keep exact."""
    model = load_model(head_of(tmp_path, 64, **MODEL))
    plan = plan_memory(model.config, parse_tiers("f16", len(model.config.layers)), ctx=65, ops=load("cuda"))
    assert plan.block_size == 64 and plan.groups[0].blocks == 2
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    data = polykv.quantize("q8_0", x, backend="cuda")
    assert isinstance(data, np.ndarray) and np.array_equal(data, polykv.quantize("q8_0", x))
    here, there = (polykv.dequantize("q8_0", data, 64, backend=b) for b in ("ref", "cuda"))
    assert isinstance(there, np.ndarray) and np.allclose(here, there, rtol=1e-6)
    found = gather(Output(False), 64, model, [1, 2, 3, 4], load("cuda"))
    assert len(found) == 6 and all(s.head_dim == 64 for s in found)


@pytest.mark.parametrize("kv", ["f16", "f16+c/f16,sink=4"])
def test_nan_of_a_refused_prompt_does_not_stay(
    machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str
) -> None:
    """The next prompt in the same block does not see its cells, but kernels multiply them, by 0."""
    llm = polykv.load(head_of(tmp_path, 64, **MODEL), backend="cuda", kv=kv, activations="f32", ctx=64, cache_tokens=64)
    runner, want = llm.engine.runner, llm.logits([1, 2])
    ops = runner.transformer.ops
    embed = ops.embed

    def broken(w: Any, ids: Any, scale: float) -> Any:
        h = embed(w, ids, scale)
        h[np.flatnonzero(np.asarray(ids) == 3)] = np.nan
        return h

    monkeypatch.setattr(ops, "embed", broken)
    sequence = Sequence(llm.cache)
    for wanted, what in (
        (Logits.NONE, r"hidden values that are not finite \(1 of 1 rows\)"),
        (Logits.LAST, "logits that are not"),
    ):
        with pytest.raises(NotFiniteError, match=what):
            runner.step([(sequence, [1, 2, 3])], wanted)
    assert sequence.length == 0 and llm.cache.max_blocks(0) == 1
    assert np.array_equal(runner.step([(sequence, [1, 2])])[0], want[-1])
