"""Pool files between `cpu`, whose blocks have 8 cells, and `cuda` with 64: codes are the same, to the last bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pretend_cupy
import pytest
from case_base import normal, seeded
from gguf_bytes import head_of

import polykv
from polykv.cache.codecs import parse_tiers
from polykv.cache.container import Container
from polykv.cache.persist import load_sequences, save_sequences
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config
from polykv.config import LayerConfig, Mixer, ModelConfig, RopeConfig
from polykv.errors import MismatchError
from polykv.fast.cuda.attend import _signs
from polykv.fast.cuda.attend_run import _levels
from polykv.fast.cuda.bound import _ids_of
from polykv.fast.cuda.forms import _form
from polykv.fast.cuda.fwht import _core
from polykv.model.runner import Logits
from polykv.ops import load
from polykv.types import I32

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels, _signs, _form, _core, _ids_of):
        yield


def pool_of(backend: str, tier: str, head_dim: int) -> KVPool:
    """A cache of two layers, the second with a window of 40."""
    rope = RopeConfig(1e4, head_dim, False)
    layers = tuple(
        LayerConfig(Mixer.SLIDING if w else Mixer.FULL, 2, 2, head_dim, 64, rope, head_dim**-0.5, w) for w in (0, 40)
    )
    model, ops = ModelConfig("llama", "fake", 32, 1000, 4096, 1e-5, layers), load(backend)
    return KVPool(ops, model, cache_config(ops, parse_tiers(tier, 2)), fingerprint="f", max_tokens=512)


def write(sequence: Sequence, ids: list[int]) -> None:
    """What a model does in a step, with random K and V."""
    pool, slots = sequence.pool, sequence.extend(ids)
    for i, layer in enumerate(pool.model.layers):
        for name, arena in (("k", pool.layer(i).k), ("v", pool.layer(i).v)):
            x = normal(seeded(f"{name} {i} {len(ids)}"), len(ids), layer.n_kv, layer.head_dim)
            pool.ops.kv_append(arena, x, slots[pool.group_of(i)])
    sequence.commit()


def codes(sequence: Sequence) -> list[np.ndarray]:
    """Packed vectors that later tokens read, of every layer and side, [cells, n_kv, bytes]."""
    pool, found = sequence.pool, []
    for i in range(len(pool.model.layers)):
        group = pool.groups[pool.group_of(i)]
        first = group.first_cell(sequence.length)
        held = list(group.held(sequence.length))
        ids: I32 = sequence.block_tables[group.index].ids[held]
        for arena in (pool.layer(i).k, pool.layer(i).v):
            data = pool.ops.fetch(pool.ops.kv_pack(arena, ids))
            cells = data.reshape(-1, *data.shape[2:])[
                first - held[0] * group.size : sequence.length - held[0] * group.size
            ]
            found.append(cells)
    return found


@pytest.mark.parametrize("way", [("cpu", "cuda"), ("cuda", "cpu")], ids="-".join)
@pytest.mark.parametrize(
    ("tier", "head_dim"), [("f16", 64), ("q8_0/turbo3", 80), ("turbo3_tcq", 128), ("turbo4/turbo2_tcq", 160)]
)
def test_codes_stay(machine: None, tmp_path: Path, way: tuple[str, str], tier: str, head_dim: int) -> None:
    """A document that ends inside a block of either size, and an agent that went on from there."""
    document = Sequence(pool_of(way[0], tier, head_dim))
    write(document, list(range(77)))
    agent = document.fork()
    write(agent, [5, 6])
    save_sequences(tmp_path / "p", [document, agent])
    loaded = load_sequences(tmp_path / "p", pool_of(way[1], tier, head_dim))
    for old, new in zip((document, agent), loaded, strict=True):
        assert new.tokens == old.tokens
        assert all(np.array_equal(a, b) for a, b in zip(codes(old), codes(new), strict=True))


def test_a_pool_of_another_backend_answers(machine: None, tmp_path: Path) -> None:
    """Logits after a document that the other backend has read are those after one's own."""
    model = head_of(tmp_path, 64, context_length=256, tok__add_space_prefix=False)
    here, there = (polykv.load(model, backend=b, kv="f16", activations="f32", ctx=256) for b in ("cpu", "cuda"))
    document = Sequence(here.cache)
    here.engine.runner.step([(document, here.tokenize("abcdebadcab" * 3))])
    save_sequences(tmp_path / "p", [document])
    (loaded,) = load_sequences(tmp_path / "p", there.cache)
    want, got = (llm.engine.runner.step([(s, [3, 4])], Logits.ALL) for llm, s in ((here, document), (there, loaded)))
    assert np.sqrt(((got - want) ** 2).mean() / want.var()) < 1e-3
    other = polykv.load(model, backend="cuda", kv="q8_0", ctx=256)
    with pytest.raises(MismatchError, match="tier of layer 0 differs"):
        load_sequences(tmp_path / "p", other.cache)


@pytest.mark.parametrize("kv", ["turbo4+c/turbo3,sink=4,recent=64", "q8_0,sink=40"])
def test_units_means_and_exact_cells_stay(machine: None, tmp_path: Path, kv: str) -> None:
    """There and back again are the same arrays: complete units, the one that is being filled, sinks. What blocks of 64
    cells lacked of those between sinks and window is noted beside them."""
    model = head_of(tmp_path, 64, context_length=256, tok__add_space_prefix=False)
    files = [tmp_path / name for name in "abc"]
    here = polykv.load(model, backend="cpu", kv=kv, ctx=256)
    document = Sequence(here.cache)
    here.engine.runner.step([(document, here.tokenize("abcdebadcab" * 13))])
    save_sequences(files[0], [document])
    for backend, before, after in zip(("cuda", "cpu"), files, files[1:], strict=False):
        save_sequences(after, load_sequences(before, polykv.load(model, backend=backend, kv=kv, ctx=256).cache))
    assert files[0].read_bytes() != files[1].read_bytes()
    with Container(files[0]) as first, Container(files[2]) as last:
        assert {name for name in last.sections if not name.startswith("since")} == set(first.sections)
        for name in first.sections:
            assert np.array_equal(first.array(name), last.array(name)), name
