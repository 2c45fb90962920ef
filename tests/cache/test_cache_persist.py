"""Saved pools: round trips, refusals that name what differs, and damage of every kind, with the pool untouched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_base import HOSTS
from fakes import VOCAB, PlainOps, check_contents, make_pool, model, step
from forged import poke, rewrite
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from polykv.cache import container, identity, persist
from polykv.cache.container import Container
from polykv.cache.group import Stage
from polykv.cache.identity import FORMAT_VERSION
from polykv.cache.persist import load_sequences, read_info, save_sequences
from polykv.cache.pool import KVPool, exact_of
from polykv.cache.sequence import Sequence
from polykv.errors import CapacityError, ConfigError, FormatError, MismatchError, PolyKVError
from polykv.ops import load

DOC = [(11 * i + i // 40) % 900 for i in range(330)]


def three(pool: KVPool) -> tuple[list[Sequence], list[list[int]]]:
    """A document and two agents; the second agent has not written anything yet."""
    doc = Sequence(pool)
    step(doc, DOC)
    agent = doc.fork()
    step(agent, [5] * 70)
    return [doc, agent, doc.fork(), Sequence(pool)], [DOC, DOC + [5] * 70, DOC, []]


def state(pool: KVPool) -> tuple[Any, ...]:
    return (
        pool.nbytes,
        pool.used_nbytes,
        [(m.n_blocks, m.n_used, m.n_free, dict(m.counters)) for m in pool.managers],
        [
            np.nan_to_num(a.view(np.uint8)).tobytes()
            for i in range(len(pool.model.layers))
            for s in (pool.layer(i).k, pool.layer(i).v)
            for a in s.fields.values()
        ],
    )


def refused(path: Path, pool: KVPool, error: type[PolyKVError] = FormatError, match: str | None = None) -> None:
    """Loading ends in the typed error, soon, and the pool is as before."""
    before = state(pool)
    with pytest.raises(error, match=match) as caught:
        load_sequences(path, pool)
    assert state(pool) == before
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1500


@pytest.fixture
def saved(tmp_path: Path, plain: Any) -> Path:
    path = tmp_path / "doc.pool"
    save_sequences(path, three(make_pool(plain))[0], extra={"document": "naïve \x1b[31m"})
    return path


@pytest.fixture
def busy(plain: Any) -> Iterator[KVPool]:
    """A pool that is in use."""
    pool = make_pool(plain)
    user = Sequence(pool)
    step(user, [3] * 50)
    done = Sequence(pool)
    step(done, [4] * 90)
    done.free()
    yield pool
    user.free()


@pytest.mark.parametrize("tier", ["f32", "f32,sink=5,recent=30"])
@pytest.mark.parametrize("windows", [(0, 96, 0), (0, 0), (64,)])
def test_round_trip_into_another_pool(ops: Any, tmp_path: Path, windows: tuple[int, ...], tier: str) -> None:
    pool = make_pool(ops, model(windows), tier=tier)
    sequences, tokens = three(pool)
    path = tmp_path / "doc.pool"
    size = save_sequences(path, sequences, extra={"a": "b"})
    assert size == path.stat().st_size and list(tmp_path.iterdir()) == [path]

    other = make_pool(ops, model(windows), tier=tier)
    step(Sequence(other), [1] * 40)
    used = [m.n_used for m in other.managers]
    loaded = load_sequences(path, other)
    for seq, want in zip(loaded, tokens, strict=True):
        check_contents(seq, want)
    # What was shared is shared again: as many blocks as before, plus those that the pool had.
    assert [m.n_used - u for m, u in zip(other.managers, used, strict=True)] == [m.n_used for m in pool.managers]
    # The agents write on without disturbing each other.
    for k, seq in enumerate(loaded):
        step(seq, [k] * 40)
    for k, (seq, want) in enumerate(zip(loaded, tokens, strict=True)):
        check_contents(seq, want + [k] * 40)
    for seq in loaded:
        seq.free()
    assert [m.n_used for m in other.managers] == used

    info = read_info(path)
    assert info.lengths == (330, 400, 330, 0) and info.extra == {"a": "b"} and info.nbytes == size
    assert info.identity == pool.identity


def test_restored_prefixes_are_reused(plain: Any, saved: Path) -> None:
    pool = make_pool(plain)
    for seq in load_sequences(saved, pool):
        seq.free()
    seq, reused = Sequence.attach(pool, DOC)
    assert reused == 320
    check_contents(seq, DOC[:320])


@pytest.mark.parametrize("tier", ["q8_0/turbo3", "f16/q4_0", "turbo3", "f32", "turbo3+c/q4_0+r,sink=4"])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 256])
@pytest.mark.parametrize("backend", HOSTS)
def test_real_codecs_come_back_bit_equal(tmp_path: Path, tier: str, head_dim: int, backend: str) -> None:
    config = model((0, 96), head_dim=head_dim, n_kv=2)
    pool = make_pool(load(backend), config, tier=tier)
    sequences, _ = three(pool)
    save_sequences(tmp_path / "a", sequences)
    other = make_pool(load(backend), config, tier=tier)
    step(Sequence(other), [1] * 40)
    loaded = load_sequences(tmp_path / "a", other)
    for before, after in zip(sequences, loaded, strict=True):
        for group in pool.groups:
            held = np.array(list(group.held(before.length)), np.int32)
            valid = held[:, None] * group.size + np.arange(group.size) < before.length
            for i in group.layers:
                kvs = [p.layer(i) if group.stage is not Stage.EXACT else exact_of(p.layer(i)) for p in (pool, other)]
                for a, b in ((kvs[0].k, kvs[1].k), (kvs[0].v, kvs[1].v)):
                    old, new = (
                        p.ops.kv_read(x, s.block_tables[group.index].ids[held])[valid]
                        for p, x, s in ((pool, a, before), (other, b, after))
                    )
                    assert np.array_equal(old, new)
    save_sequences(tmp_path / "b", loaded)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_file_is_plain_safetensors(saved: Path) -> None:
    tensors = load_file(saved)
    # Blocks are stored once: the document's 11, the agent's copy of the last one, and 2 more.
    assert tensors["layer.0.k"].shape == (14, 32, 1, 32 * 4)
    assert tensors["lengths"].tolist() == [330, 400, 330, 0]
    assert saved.stat().st_mode & 0o077 == 0


def test_stale_cells_are_not_written(plain: Any, tmp_path: Path) -> None:
    """What an earlier sequence left behind the last token stays out of the file."""
    pool = make_pool(plain, model((0,)), max_tokens=64)
    old = Sequence(pool)
    step(old, [7] * 64)
    old.trim(3)
    save_sequences(tmp_path / "p", [old])
    cells = load_file(tmp_path / "p")["layer.0.k"].view(np.float32)
    assert cells.shape[0] == 1 and (cells[0, 3:] == 0).all() and (cells[0, :3] != 0).any()


# -- refusals --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("model", lambda ops: make_pool(ops, fingerprint="other")),
        ("tier of layer 0", lambda ops: make_pool(ops, tier="f32,0=f16")),
        ("tier of layer 2", lambda ops: make_pool(ops, tier="f32,2=f32/q8_0")),
        ("rope of layer 0", lambda ops: make_pool(ops, model(base=5e5))),
        ("block size", lambda ops: make_pool(ops, block_size=48)),
        ("head_dim of layer 0", lambda ops: make_pool(ops, model(head_dim=64))),
        ("number of kv heads of layer 0", lambda ops: make_pool(ops, model(n_kv=2))),
        ("attention window of layer 1", lambda ops: make_pool(ops, model((0, 64, 0)))),
        ("number of layers", lambda ops: make_pool(ops, model((0, 96)))),
    ],
)
def test_another_cache_is_refused_by_name(saved: Path, field: str, make: Callable[[Any], KVPool]) -> None:
    refused(saved, make(PlainOps()), MismatchError, f"^{field} differs")


def test_no_room_is_refused(saved: Path) -> None:
    refused(saved, make_pool(PlainOps(), max_tokens=13 * 32), CapacityError, "needs 14 more blocks")


def test_a_full_group_is_noticed_before_another_grows(saved: Path) -> None:
    pool = make_pool(PlainOps(), max_tokens=20 * 32)
    pool.reserve(1, 20)
    for _ in range(19):
        pool.managers[1].alloc()
    refused(saved, pool, CapacityError, "window 96")


def test_save_needs_sequences_of_one_pool(plain: Any, tmp_path: Path) -> None:
    for bad in ([], [Sequence(make_pool(plain)), Sequence(make_pool(plain))]):
        with pytest.raises(ConfigError):
            save_sequences(tmp_path / "p", bad)
    with pytest.raises(ConfigError, match="metadata"):
        save_sequences(tmp_path / "p", [Sequence(make_pool(plain))], extra={"x": "y" * (5 << 20)})
    with pytest.raises(FormatError, match="cannot be written"):
        save_sequences(tmp_path / "missing" / "p", [Sequence(make_pool(plain))])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_old_file(plain: Any, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr(PlainOps, "kv_pack", lambda *a: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        save_sequences(saved, three(make_pool(PlainOps()))[0])
    assert saved.read_bytes() == before and list(saved.parent.iterdir()) == [saved]


def test_a_failing_unpack_gives_all_blocks_back(saved: Path, busy: KVPool, monkeypatch: pytest.MonkeyPatch) -> None:
    used = [m.n_used for m in busy.managers]
    monkeypatch.setattr(PlainOps, "kv_unpack", lambda *a: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        load_sequences(saved, busy)
    assert [m.n_used for m in busy.managers] == used


# -- damage ----------------------------------------------------------------------------------------------------
def test_every_truncation_is_refused(saved: Path, busy: KVPool) -> None:
    data = saved.read_bytes()
    n = 8 + int.from_bytes(data[:8], "little")
    lengths = {*range(64), *range(64, n, 37), *range(n - 3, n + 3), *range(n, len(data), 1009), len(data) - 1}
    for length in sorted(lengths):
        saved.write_bytes(data[:length])
        with pytest.raises(FormatError):
            load_sequences(saved, busy)
    refused(saved, busy)
    saved.write_bytes(data + b"\0")
    refused(saved, busy)


def test_every_flipped_bit_is_refused(saved: Path, busy: KVPool) -> None:
    """Each bit of the length and some of every 7th header byte, and samples of every section."""
    data = saved.read_bytes()
    n = 8 + int.from_bytes(data[:8], "little")
    with Container(saved) as file:
        sections = list(file.sections.values())
    places = [(i, b) for i in range(8) for b in range(8)]
    places += [(i, i % 8) for i in range(8, n, 7)] + [(i, 5) for i in range(8, n, 11)]
    for s in sections:
        places += [(i, i % 8) for i in {s.begin, (s.begin + s.end) // 2, s.end - 1}]
    start, before = time.perf_counter(), state(busy)
    for i, bit in places:
        flipped = bytearray(data)
        flipped[i] ^= 1 << bit
        saved.write_bytes(flipped)
        with pytest.raises((FormatError, MismatchError)):
            load_sequences(saved, busy)
    assert state(busy) == before
    # The limit per file is a second; a mean far above it would show here whatever the machine.
    assert time.perf_counter() - start < len(places)


def test_rewrite_alone_is_harmless(saved: Path, busy: KVPool) -> None:
    rewrite(saved, lambda h, d: None)
    assert [s.length for s in load_sequences(saved, busy)] == [330, 400, 330, 0]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (poke("tokens", 4, VOCAB), "outside the vocabulary"),
        (poke("tokens", 4, -1), "outside the vocabulary"),
        (poke("tokens", 4, 3), "different tokens"),
        (poke("lengths", 0, 329), "do not add up"),
        (poke("lengths", 0, -1), "do not add up"),
        (poke("table.0", 3, 14), "must be bytes of shape"),
        (poke("table.0", 3, 2**31 - 1), "must be bytes of shape"),
        (poke("table.0", 3, -1), "exactly the blocks"),
        (poke("table.0", 3, 2), "two positions"),
        (poke("table.0", (10, 34), 11), "unused"),
        (poke("table.1", 0, 0), "exactly the blocks"),
        (poke("table.1", 10, -1), "exactly the blocks"),
    ],
)
def test_lies_with_right_checksums_are_refused(saved: Path, busy: KVPool, change: Any, match: str) -> None:
    rewrite(saved, change)
    refused(saved, busy, FormatError, match)


def put(section: str, key: str, value: Any) -> Callable[[dict[str, Any], bytearray], None]:
    def change(header: dict[str, Any], data: bytearray) -> None:
        header[section][key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(put("layer.0.k", "dtype", v) for v in ("F64", "", None, 3, "I32")),
        *(put("layer.0.k", "shape", v) for v in ([], [-1], [14.0, 32, 1, 128], [True], [2**80], "x", [1] * 9, None)),
        *(put("layer.0.k", "data_offsets", v) for v in ([0], [5, 1], [0, 2**70], [-8, 0], [0, 1, 2], None, "ab")),
        put("tokens", "data_offsets", [0, 4240]),
        put("tokens", "extra", 1),
        put("__metadata__", "format", "pt"),
        put("__metadata__", "identity", "{"),
        put("__metadata__", "identity", "[]"),
        put("__metadata__", "identity", "[" * 100_000),
        put("__metadata__", "identity", json.dumps({"version": FORMAT_VERSION})),
        put("__metadata__", "checksums", "{}"),
        put("__metadata__", "checksums", "[" * 100_000),
        put("__metadata__", "x", 1),
        lambda h, d: h.pop("lengths"),
        lambda h, d: h.update(more={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}),
    ],
)
def test_bad_headers_are_refused(saved: Path, busy: KVPool, change: Any) -> None:
    rewrite(saved, change, sign=False)
    refused(saved, busy)


@pytest.mark.parametrize("name", ["model", "tiers", "ropes"])
def test_long_or_odd_identities_do_not_reach_the_terminal(saved: Path, busy: KVPool, name: str) -> None:
    for value in ("x" * 100_000, "\x1b[31m\ud800"):

        def change(header: dict[str, Any], data: bytearray, value: str = value) -> None:
            identity = json.loads(header["__metadata__"]["identity"])
            identity[name] = value if name == "model" else [value] * 3
            header["__metadata__"]["identity"] = json.dumps(identity)

        rewrite(saved, change)
        refused(saved, busy, PolyKVError)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 7,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"<!DOCTYPE html><html></html>",
        (0).to_bytes(8, "little") + b"{}",
        (2**63).to_bytes(8, "little") + b"{}",
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (3).to_bytes(8, "little") + b" {}",
        (2).to_bytes(8, "little") + b"[]",
        (30).to_bytes(8, "little") + b'{"__metadata__":{},"__metadat' + b"a",
        (37).to_bytes(8, "little") + b'{"__metadata__":{},"__metadata__":{}}',
        (22).to_bytes(8, "little") + b'{"__metadata__":"abc"}',
        (16).to_bytes(8, "little") + b'{"a":Infinity}  ',
        (2_000_000).to_bytes(8, "little") + b'{"a":' + b"[" * 1_999_995,
        (2_000_000).to_bytes(8, "little") + b'{"a":' + b"9" * 1_999_995,
        (8).to_bytes(8, "little") + b'{"\xff": 1}'[:8],
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, busy: KVPool, data: bytes) -> None:
    path = tmp_path / "p"
    path.write_bytes(data)
    refused(path, busy)
    with pytest.raises(FormatError):
        read_info(path)


def test_other_safetensors_directories_and_pipes_are_refused(tmp_path: Path, busy: KVPool) -> None:
    save_file({"lengths": np.zeros(1, np.int32)}, tmp_path / "a", metadata={"format": "pt"})
    os.mkfifo(tmp_path / "pipe")
    for name in ("a", "pipe", "none", "."):
        refused(tmp_path / name, busy)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_damage_never_loads_other_data(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("d") / "p"
    save_sequences(path, three(make_pool(PlainOps()))[0])
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(raw) - 1))
        raw[i] ^= data.draw(st.integers(1, 255))
    if raw == path.read_bytes():
        return
    path.write_bytes(raw)
    pool = make_pool(PlainOps())
    with pytest.raises((FormatError, MismatchError)):
        load_sequences(path, pool)
    assert all(m.n_used == 0 for m in pool.managers)


def test_slabs_cover_all_blocks(plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persist, "_SLAB", 4)
    monkeypatch.setattr(container, "_SLAB", 1000)
    sequences, tokens = three(make_pool(plain))
    save_sequences(tmp_path / "p", sequences)
    for seq, want in zip(load_sequences(tmp_path / "p", make_pool(plain)), tokens, strict=True):
        check_contents(seq, want)


@pytest.mark.parametrize("tier", ["q8_0/turbo3", "q4_0/f16", "turbo3+c/q8_0,sink=3"])
def test_a_file_of_one_backend_is_read_by_the_other(tmp_path: Path, tier: str) -> None:
    """The exchange layout is the same for all: equal bytes, and values equal to float rounding."""
    config = model((0, 96), head_dim=64, n_kv=2)
    pools = [make_pool(load(name), config, tier=tier) for name in HOSTS]
    sequences, _ = three(pools[0])
    save_sequences(tmp_path / "a", sequences)
    loaded = load_sequences(tmp_path / "a", pools[1])
    save_sequences(tmp_path / "b", loaded)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    for arena, other in ((pools[0].layer(0).k, pools[1].layer(0).k), (pools[0].layer(0).v, pools[1].layer(0).v)):
        old, new = (
            p.ops.kv_read(a, s.block_tables[0].ids[:5])
            for p, a, s in zip(pools, (arena, other), (sequences[0], loaded[0]), strict=True)
        )
        np.testing.assert_allclose(old, new, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (put("lengths", "data_offsets", [4, 20]), "overlaps another section or leaves a hole"),
        (put("lengths", "data_offsets", [2**40, 2**40 + 16]), "outside the file"),
        (put("lengths", "data_offsets", [16, 0]), "outside the file"),
        (put("lengths", "shape", [5]), "has 16 bytes, its shape needs 20"),
        (put("lengths", "dtype", "U8"), "has 16 bytes, its shape needs 4"),
        (put("lengths", "shape", [2**40, 2**40]), "its shape needs"),
    ],
)
def test_each_rule_of_the_header_is_checked_by_itself(saved: Path, busy: KVPool, change: Any, match: str) -> None:
    rewrite(saved, change, sign=False)
    refused(saved, busy, FormatError, match)


def test_a_key_twice_is_named(saved: Path, busy: KVPool) -> None:
    text = b'{"__metadata__":{"header_checksum":"' + b"0" * 32 + b'","format":"a","format":"polykv-pool"}}'
    blank = len(text).to_bytes(8, "little") + text
    saved.write_bytes(blank.replace(b"0" * 32, container._sum(blank).encode(), 1))
    refused(saved, busy, FormatError, "twice")


def test_long_rope_texts_are_shortened_without_losing_a_difference() -> None:
    long = "a" * 200
    assert len(identity._short(long)) < 100 and identity._short(long) != identity._short(long[:-1] + "b")
    assert identity._short("short") == "short"
