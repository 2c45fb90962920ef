"""Memory of a device, in the emulator: planned, taken once, and refused with what would fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pretend_cupy
import pytest
from gguf_bytes import head_of
from pretend_cupy import Piece

import polykv
from polykv import cli
from polykv.device_plan import Session, plan_device, what_fits
from polykv.errors import CapacityError
from polykv.fast.cuda.arrays import asnumpy
from polykv.fast.cuda.attend import _signs
from polykv.fast.cuda.attend_run import _levels
from polykv.fast.cuda.bound import _ids_of
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.footprint import PROGRAMS
from polykv.fast.cuda.forms import _form
from polykv.fast.cuda.fwht import _core
from polykv.fast.cuda.placed import joined, placed
from polykv.fast.cuda.weights import by_field, joined_rows
from polykv.model.loader import load_model
from polykv.ops import load
from polykv.types import WEIGHT_BLOCK, QuantTensor, WeightType

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
CONTEXT = 1 << 16


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels, _signs, _form, _core, _ids_of):
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return head_of(folder, 64, context_length=CONTEXT, tok__add_space_prefix=False)


@pytest.mark.parametrize("kv", ["f16", "turbo4+c/turbo3,sink=4,recent=64"])
def test_what_is_taken_is_what_was_planned(machine: None, path: Path, kv: str) -> None:
    before = Piece.used
    llm = polykv.load(path, backend="cuda", kv=kv, ctx=512)
    plan = llm.device_plan
    assert plan is not None and plan.free == Piece.total - before
    assert llm.cache.nbytes == plan.parts["K/V"] == llm.plan(agents=4).nbytes
    weights = llm.model.weights
    taken = llm.ops.held(weights, llm.engine.runner.transformer.stack)
    assert 0 < taken["weights"] <= plan.parts["weights"] and taken["driver"] == Piece.used
    # Programs are no arrays, and steps are taken from CuPy's pool, which the emulator does not have.
    rest = plan.nbytes - PROGRAMS - plan.parts["steps"] - (Piece.used - before)
    assert 0 <= rest < 4 << 20
    llm.generate([1, 2, 3], max_tokens=2, ignore_eog=True)
    assert llm.cache.counters["grown"] == 0 and not [n for n in llm.notes if "GPU" in n]
    found = llm.report()["bytes"]["device"]
    assert found["kv"] == llm.cache.nbytes and found["kv_grown"] == 0
    del llm, weights
    assert Piece.used == before


def test_what_does_not_fit_is_refused_before_anything_is_taken(
    machine: None, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_model(path)
    session = Session(load("cuda"), model, (polykv.cache.codecs.parse_tiers("f16", 2)), 32768, 4)
    whole = plan_device(session)
    assert whole is not None
    monkeypatch.setattr(Piece, "total", Piece.used + whole.nbytes - whole.parts["K/V"] // 2)
    before = Piece.used
    with pytest.raises(
        CapacityError, match=r"on the GPU: what fits is a context of [\d,]+ tokens \(--ctx (\d+)\)"
    ) as e:
        polykv.load(path, backend="cuda", kv="f16", ctx=32768, cache_tokens=4 * 32768)
    assert Piece.used == before
    ctx = int(str(e.value).split("(--ctx ")[1].split(")")[0])
    assert 16000 < ctx < 16640 and ", or 2 in place of 4 sequences of this length" in str(e.value)
    # Nothing was said about how many cells: fewer sequences of full length are taken, and that is said.
    llm = polykv.load(path, backend="cuda", kv="f16", ctx=32768)
    assert llm.cache.max_blocks(0) * 64 == 2 * 32768
    assert any("room for 2 sequences of full length" in n for n in llm.notes)
    del llm
    options = ["--ctx", str(ctx), "--shared", "0", "--agents", "4"]
    assert cli.run(["plan", "-m", str(path), "--backend", "cuda", "--kv", "f16", "--json", *options]) == 0
    out = capsys.readouterr().out
    assert "memory of the GPU" in out and json.loads(out.splitlines()[-1])["device"]["fits"]
    options[1] = str(ctx + 64)
    assert cli.run(["plan", "-m", str(path), "--backend", "cuda", "--kv", "f16", *options]) == 2
    assert "what fits is a context of" in capsys.readouterr().err
    # Of agents over a document, of which 4.3 GB do not fit into 3: types of fewer bits are lifted in 256 MB.
    monkeypatch.setattr(Piece, "total", 3 << 30)
    assert what_fits(replace(session, ctx=CONTEXT, agents=64, shared=1)) == [
        "a context of 46,976 tokens (--ctx 46976)",
        "--kv q8_0",
        "45 in place of 64 agents",
    ]
    monkeypatch.setattr(Piece, "total", Piece.used + (1 << 20))
    assert what_fits(session) == []
    with pytest.raises(CapacityError, match="no context fits beside the weights"):
        polykv.load(path, backend="cuda", kv="f16", ctx=64)


def test_growth_holds_no_array_twice(machine: None, path: Path) -> None:
    """What is replaced goes back to the driver; what there is no room for is said, and nothing is lost."""
    llm = polykv.load(path, backend="cuda", kv="f16", ctx=64, cache_tokens=64)
    arenas, before = [llm.cache.layer(0).k, llm.cache.layer(0).v], Piece.used
    for n in (40, 20, 7):
        llm.ops.kv_grow(arenas, n)
        assert arenas[0].n_blocks == n
    assert Piece.used - before <= sum(a.nbytes for a in arenas)
    with pytest.raises(CapacityError, match=r"the GPU has .* left, and .* MB are needed: .* plan --backend cuda"):
        llm.ops.kv_grow(arenas, 1 << 22)
    assert arenas[0].n_blocks == arenas[1].n_blocks == 7


def test_a_step_without_room_says_so(machine: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = polykv.load(path, backend="cuda", kv="f16", ctx=64)
    want = llm.generate([1, 2, 3], max_tokens=1, ignore_eog=True).tokens

    def full(shape: object, dtype: object = None) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(cupy(), "empty", full)
        with pytest.raises(CapacityError, match=r"the GPU has [\d,]+ MB left, and embed needs more memory"):
            llm.generate([1, 2, 4], max_tokens=1, ignore_eog=True)
    assert llm.generate([1, 2, 3], max_tokens=1, ignore_eog=True).tokens == want


@pytest.mark.parametrize("kind", [WeightType.Q4_0, WeightType.Q6_K, WeightType.F16])
def test_matrices_are_joined_piece_by_piece(machine: None, kind: WeightType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are those of the whole matrix cut at once, from the host or joined again on the device."""
    monkeypatch.setattr("polykv.fast.cuda.weights.STAGED", 1000)
    size, rng = 256 // WEIGHT_BLOCK[kind][0] * WEIGHT_BLOCK[kind][1], np.random.default_rng(0)
    parts = [QuantTensor(kind, rng.integers(0, 256, (n, size), np.uint8), 256) for n in (3, 17, 1)]
    want = by_field(np.concatenate([p.data for p in parts]), kind)
    assert np.array_equal(asnumpy(joined(*parts).matrices[0].data), want)
    there = joined_rows([joined_rows(parts[:2], kind), placed(parts[2])], kind)
    assert np.array_equal(asnumpy(there.data), want)
