"""Layers of a step of few rows in the emulator, kernel by kernel as a graph has them, against the reference."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pretend_cupy
import pytest
from case_attention import Plan, Seq
from case_base import normal, seeded
from case_model import Shape, angles_of, attention_weights, mlp_weights

from polykv.cache.codecs import codec, parse_tier
from polykv.fast import cuda
from polykv.fast.cuda import follow, graphs, shared_plan
from polykv.fast.cuda.arrays import asarray, asnumpy
from polykv.fast.cuda.attend import _signs
from polykv.fast.cuda.attend_run import _levels
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.forms import _form
from polykv.fast.cuda.fwht import _core
from polykv.fast.cuda.kv_write import KeySteps, New, write_both
from polykv.fast.cuda.layers import prepared
from polykv.fast.cuda.lift import levels_of
from polykv.fast.cuda.placed import attention_of, head_of, mlp_of
from polykv.fast.cuda.step_tables import Shape as Cut
from polykv.fast.cuda.step_tables import host_tables, shapes_of
from polykv.fast.cuda.upload import Upload
from polykv.ops import load
from polykv.types import Activations, HeadWeights, Layer, LayerKV, Slots, Stack, WeightType

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

# What two orders of the same sums, a code that they round differently, and levels as bytes make of a row.
TOLERANCE = {"f16": 3e-3, "q8_0/turbo3": 2e-2, "turbo3_tcq/turbo2_tcq": 3e-2}
SMALL = Shape("small", 128, 4, 2, 64, 256, False, (WeightType.Q4_0, WeightType.Q8_0))
SHAPES = (
    SMALL,
    # All columns are whole tiles for tensor cores but those of the head; norms of heads, of branches; biases; factors.
    replace(SMALL, name="gemma", gemma=True, window=40, bias=True, equalized="kv"),
    # Rows that are no whole tiles of 128 values, heads that are no whole blocks of 32.
    replace(SMALL, name="odd", embd=96, n_heads=8, n_kv=8, head_dim=72, ffn=160),
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels, _signs, _form, _core, levels_of):
        yield


def stack_of(ops: Any, shape: Shape, tier: str, n_blocks: int) -> Stack:
    """Two layers of f16; one of other types: what the bytes of levels leave of a value decides roundings of the next
    layer, and random weights make ten times as much of that."""
    pair, size = parse_tier(tier), (n_blocks, shape.n_kv, shape.head_dim, 64)
    layers = []
    for i in range(2 if tier == "f16" else 1):
        made = replace(shape, name=f"{shape.name} {i}")
        kv = LayerKV(ops.kv_alloc(pair.k, *size), ops.kv_alloc(pair.v, *size, values=True))
        layers.append(Layer(attention_weights(made), mlp_weights(made), kv, 0, 0))
    return Stack(tuple(layers))


@pytest.mark.parametrize("tier", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
@pytest.mark.parametrize("seqs", [((70, 1),), ((70, 3), (65, 2))], ids=len)
def test_few_rows(machine: None, shape: Shape, tier: str, seqs: tuple[tuple[int, int], ...]) -> None:
    """One row is multiplied by dp4a, five are padded to eight and multiplied as tiles."""
    plan = Plan(tuple(Seq(*s) for s in seqs), shared=64 * (len(seqs) > 1))
    segments, slots, n_blocks = plan.build("few")
    h0 = normal(seeded(shape.name), plan.n_rows, shape.embd)
    step = [angles_of(segments.positions, shape)], [segments], [slots]
    want, stack = h0.copy(), stack_of(load("ref"), shape, tier, n_blocks)
    load("ref").layers(want, stack, *step, activations=Activations.Q8)
    got, stack = asarray(h0), stack_of(cuda, shape, tier, n_blocks)
    cuda.layers(got, stack, *step, activations=Activations.Q8)
    assert prepared(stack).graphs.counters == {"eager": 1}
    error = (asnumpy(got) - want).astype(np.float64)
    assert np.sqrt((error**2).mean() / ((want - h0).astype(np.float64) ** 2).mean()) <= TOLERANCE[tier]


@pytest.mark.parametrize("tier", TOLERANCE)
def test_agents_that_share_a_document(machine: None, monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    """The document is lifted once for all rows; some have cells of their own, some are in the midst of it."""
    monkeypatch.setattr(shared_plan, "LEAST_CELLS", 128)
    monkeypatch.setattr(shared_plan, "LEAST_OF_PATHS", shared_plan.LEAST_QUERIES)
    plan = Plan((*(Seq(129 + 5 * i, 1) for i in range(15)), Seq(140, 2)), shared=128)
    segments, slots, n_blocks = plan.build("agents")
    h0 = normal(seeded("agents"), plan.n_rows, SMALL.embd)
    step = [angles_of(segments.positions, SMALL)], [segments], [slots]
    want, stack = h0.copy(), stack_of(load("ref"), SMALL, tier, n_blocks)
    load("ref").layers(want, stack, *step, activations=Activations.Q8)
    got, stack = asarray(h0), stack_of(cuda, SMALL, tier, n_blocks)
    cuda.layers(got, stack, *step, activations=Activations.Q8)
    counters = prepared(stack).graphs.counters
    assert counters["eager"] == 1 and counters["lifted"] > 0
    error = (asnumpy(got) - want).astype(np.float64)
    assert np.sqrt((error**2).mean() / ((want - h0).astype(np.float64) ** 2).mean()) <= TOLERANCE[tier]


def test_a_step_that_broke_off_is_not_captured(machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its kernels need is not all there yet. Nor is a graph of a pool that has grown since."""
    segments, slots, n_blocks = Plan((Seq(70, 1),), shared=0).build("few")
    step = [angles_of(segments.positions, SMALL)], [segments], [slots]
    stack, h = stack_of(cuda, SMALL, "f16", n_blocks), asarray(normal(seeded("h"), 1, SMALL.embd))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(graphs, "run_layers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cuda.layers(h, stack, *step, activations=Activations.Q8)
    cuda.layers(h, stack, *step, activations=Activations.Q8)
    cuda.kv_grow([stack.layers[-1].kv.v], n_blocks + 1)
    cuda.layers(h, stack, *step, activations=Activations.Q8)
    assert prepared(stack).graphs.counters == {"eager": 2}


def test_graphs_go_when_exact_cells_lie_elsewhere(machine: None) -> None:
    """They grow apart from the codes of their layer."""
    kv = stack_of(cuda, SMALL, "f16", 2).layers[0].kv
    both: Any = SimpleNamespace(kv=replace(kv, exact=stack_of(cuda, SMALL, "f16", 2).layers[0].kv))
    made = graphs.Graphs([both], [])
    for arena in (both.kv.k, both.kv.exact.v):
        made._forget_moved()
        made._kept["key"] = SimpleNamespace()  # type: ignore[assignment]
        made._forget_moved()
        assert made._kept
        cuda.kv_grow([arena], 3)
        made._forget_moved()
        assert not made._kept


def test_graphs_share_a_workspace(machine: None) -> None:
    """Steps of any number of rows take the same arrays; what was captured with smaller ones is forgotten."""
    stack = stack_of(cuda, SMALL, "f16", 20)
    made = prepared(stack).graphs
    for rows in (1, 5):
        segments, slots, _ = Plan((Seq(70, rows),), shared=0).build("few")
        h, angles = asarray(normal(seeded("h"), rows, SMALL.embd)), angles_of(segments.positions, SMALL)
        cuda.layers(h, stack, [angles], [segments], [slots], activations=Activations.Q8)
    arrays = dict(made._room._arrays)
    # Room for the most rows from the beginning: only partial results may have needed more.
    assert all(len(made._room.take("h", (n, SMALL.embd))) == n for n in (1, 5, 32)) and made._room.moved <= 2
    assert made._room.nbytes == sum(a.nbytes for a in arrays.values()) < made.nbytes and made._kept
    made._room.take("h", (33, SMALL.embd))
    made._forget_stale()
    assert not made._kept


def test_rooms_hold_padded_rows(machine: None) -> None:
    """Five rows of 48 angles are 240 values; the graph has eight rows."""
    shape = replace(SMALL, head_dim=96)
    segments, slots, n_blocks = Plan((Seq(70, 5),), shared=0).build("few")
    layer = stack_of(cuda, shape, "f16", n_blocks).layers[0]
    angles = angles_of(segments.positions, shape)
    rooms = host_tables([Cut.of(layer)], 5, [angles], [segments], [slots]).rooms
    assert rooms.rows == 8 and min(rooms.rooms[:2]) >= 8 * angles.cos.shape[1] == 8 * 48


@pytest.mark.parametrize(
    ("tier", "works", "want"), [("turbo3_tcq", True, True), ("turbo3_tcq", False, False), ("f16", True, False)]
)
def test_attention_begins_early_behind_a_search_alone(
    machine: None, monkeypatch: pytest.MonkeyPatch, tier: str, works: bool, want: bool
) -> None:
    """Not where units are coded between new cells and attention, nor where kernels wait for those before anyhow."""
    monkeypatch.setattr(follow, "works", lambda: works)
    segments, _, n_blocks = Plan((Seq(70, 1),), shared=0).build("few")
    layer = stack_of(cuda, SMALL, tier, n_blocks).layers[0]
    assert Cut.of(layer).config(segments, None).early == want
    staged = replace(layer, kv=replace(layer.kv, exact=stack_of(cuda, SMALL, "f16", n_blocks).layers[0].kv))
    assert [s.config(segments, None).early for s in shapes_of(staged)] == [False, False]


def test_weights_on_the_device_go_with_the_model(machine: None) -> None:
    def own(w: Any, *names: str) -> Any:
        """With matrices that no other test has."""
        return replace(w, **{name: replace(getattr(w, name)) for name in names})

    weights = [own(attention_weights(SMALL), "wq", "wk", "wv", "wo"), own(mlp_weights(SMALL), "gate", "up", "down")]
    weights.append(HeadWeights(weights[0].norm, weights[1].gate, 0.0, 1e-5))
    places: list[Any] = [attention_of, mlp_of, head_of]
    there = [ref(place(w)) for place, w in zip(places, weights, strict=True)]
    assert attention_of(weights[0]) is there[0]()
    joined = [ref(x) for x in (*there[0]().qkv.matrices, there[1]().down, there[2]().out)]  # type: ignore[union-attr]
    del weights
    gc.collect()
    assert [r() for r in (*there, *joined)] == [None] * (3 + len(joined))


def test_memory_of_a_copy_under_way_is_kept(machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: waited.append(True))
    monkeypatch.setattr(cupy().cuda, "Event", lambda disable_timing: event)
    upload = Upload([4])
    assert not waited
    del upload
    assert waited


def test_keys_of_small_heads_are_normed(machine: None) -> None:
    """Sums of the lanes of a warp take more room than such a vector, and lie in no other warp's."""
    rng, n, heads, dim = seeded("small heads"), 4, 2, 32
    x, norm, none = normal(rng, n, heads, dim), normal(rng, dim), np.zeros(n, np.int32)
    k, v = (cuda.kv_alloc(codec("f16"), 1, heads, dim, 64, values=values) for values in (False, True))
    new, cells = New(asarray(x)), Slots(asarray(none), asarray(np.arange(n, dtype=np.int32)))
    write_both(LayerKV(k, v), new, new, cells, KeySteps(asarray(norm), 1e-5))
    got = asnumpy(cuda.kv_read(k, asarray(none[:1])))[0, :n]
    assert np.allclose(got, load("ref").rms_norm(x, norm, 1e-5), rtol=1e-3)
