"""Pool files whose blocks have another size than those of the session: exact, and nothing that is missing is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import PlainOps, check_contents, make_pool, model, step
from forged import poke, rewrite
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from polykv.cache.group import CacheGroup
from polykv.cache.persist import load_sequences, save_sequences
from polykv.cache.pool import KVPool
from polykv.cache.regroup import regroup
from polykv.cache.sequence import Sequence
from polykv.errors import CapacityError, FormatError, MismatchError
from polykv.ops import load

DOC = [(11 * i + i // 40) % 900 for i in range(330)]
SIZES = [(8, 64), (64, 8), (32, 64), (16, 8)]


def three(pool: KVPool, n: int = 330) -> tuple[list[Sequence], list[list[int]]]:
    """A document, an agent that wrote, one that did not, an empty sequence."""
    doc = Sequence(pool)
    step(doc, DOC[:n])
    agent = doc.fork()
    step(agent, [5] * 70)
    return [doc, agent, doc.fork(), Sequence(pool)], [DOC[:n], DOC[:n] + [5] * 70, DOC[:n], []]


@pytest.mark.parametrize("tier", ["f32", "f32,sink=5,recent=30", "f32,sink=60"])
@pytest.mark.parametrize("windows", [(0, 96, 0), (100,), (0,)])
@pytest.mark.parametrize("sizes", SIZES)
def test_contents_and_what_follows(
    ops: Any, tmp_path: Path, sizes: tuple[int, int], windows: tuple[int, ...], tier: str
) -> None:
    pool = make_pool(ops, model(windows), tier=tier, block_size=sizes[0])
    sequences, tokens = three(pool)
    save_sequences(tmp_path / "p", sequences)
    other = make_pool(ops, model(windows), tier=tier, block_size=sizes[1])
    loaded = load_sequences(tmp_path / "p", other)
    for seq, want in zip(loaded, tokens, strict=True):
        check_contents(seq, want)
    # The document, and its reader that has written nothing, share every block.
    assert all(a == b for a, b in zip(loaded[0].tables, loaded[2].tables, strict=True))
    for k, seq in enumerate(loaded):
        step(seq, [k] * 40)
    for k, (seq, want) in enumerate(zip(loaded, tokens, strict=True)):
        check_contents(seq, want + [k] * 40)
    for seq in loaded:
        seq.free()
    assert [m.n_used for m in other.managers] == [0] * len(other.managers)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.sampled_from([0, 20, 96, 130]), st.integers(1, 330), st.integers(0, 330))
def test_what_is_missing_is_never_read(
    tmp_path_factory: pytest.TempPathFactory, sizes: tuple[int, int], window: int, n: int, back: int
) -> None:
    """Prefixes that are found and sequences that are cut back hold every cell that they read."""
    path = tmp_path_factory.mktemp("p") / "p"
    pool = make_pool(PlainOps(), model((0, window)), block_size=sizes[0])
    save_sequences(path, three(pool, n)[0])
    other = make_pool(PlainOps(), model((0, window)), block_size=sizes[1])
    loaded = load_sequences(path, other)
    found, reused = Sequence.attach(other, DOC[: back + 1])
    check_contents(found, DOC[:reused])
    if back <= n:
        try:
            loaded[0].trim(back)
        except CapacityError:
            assert window and back < n
        else:
            check_contents(loaded[0], DOC[:back])
            step(loaded[0], [7] * 200)
            check_contents(loaded[0], DOC[:back] + [7] * 200)
    loaded[1].free()
    step(loaded[1], DOC)
    check_contents(loaded[1], DOC)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([8, 16, 32, 64]), min_size=3, max_size=5),
    st.sampled_from([0, 1, 20, 96]),
    st.sampled_from(["f32", "f32,sink=5,recent=30"]),
    st.integers(1, 330),
    st.lists(st.integers(0, 80), min_size=5, max_size=5),
)
@example([8, 8, 8, 8, 16], 1, "f32", 1, [4, 10, 9, 0, 0])
def test_files_of_files(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], window: int, tier: str, n: int, steps: list[int]
) -> None:
    """Saved by one, loaded and saved again by others: what a file lacked is still known to be missing."""
    path, tokens = tmp_path_factory.mktemp("p") / "p", DOC[:n]
    pool = make_pool(PlainOps(), model((0, window)), tier=tier, block_size=sizes[0])
    seq = Sequence(pool)
    step(seq, tokens)
    for size, more in zip(sizes[1:], steps, strict=False):
        save_sequences(path, [seq, Sequence(pool)])
        pool = make_pool(PlainOps(), model((0, window)), tier=tier, block_size=size)
        seq, _ = load_sequences(path, pool)
        check_contents(seq, tokens)
        for back in (n - 1, n // 2, n - more, 66):
            found, reused = Sequence.attach(pool, tokens[: max(0, back) + 1])
            check_contents(found, tokens[:reused])
            found.free()
        shorter = seq.fork()
        try:
            shorter.trim(max(0, n - more))
        except CapacityError:
            assert window or "sink" in tier
        else:
            check_contents(shorter, tokens[: max(0, n - more)])
            if more % 2:
                seq, tokens = shorter, tokens[: max(0, n - more)]
        if more:
            tokens = tokens + [more] * more
            step(seq, [more] * more)
        n = len(tokens)
        check_contents(seq, tokens)


def test_what_a_file_says_it_lacks(tmp_path: Path) -> None:
    """Only where it lacks something, in the units of the document's positions, and never more than is not read."""
    path, config = tmp_path / "p", model((0, 30))
    doc = Sequence(make_pool(PlainOps(), config, block_size=8))
    step(doc, DOC[:78])
    save_sequences(path, [doc])
    assert not [name for name in load_file(path) if name.startswith("since")]
    save_sequences(path, load_sequences(path, make_pool(PlainOps(), config, block_size=64)))
    assert {name: a.tolist() for name, a in load_file(path).items() if name.startswith("since")} == {"since.1": [48]}
    whole = path.read_bytes()
    for value, good in ((49, True), (50, False), (-1, False), (1 << 30, False)):
        rewrite(path, poke("since.1", 0, value))
        pool = make_pool(PlainOps(), config, block_size=8)
        if good:
            assert load_sequences(path, pool)[0].block_tables[1].since == value
        else:
            with pytest.raises(FormatError, match=r"since\.1: must have a position for every sequence"):
                load_sequences(path, pool)
        path.write_bytes(whole)


@pytest.mark.parametrize("tier", ["q8_0/turbo3", "turbo3+c/q4_0+r,sink=4,recent=64", "turbo3_tcq"])
def test_there_and_back(tmp_path: Path, tier: str) -> None:
    """Codes come back bit for bit, whatever the blocks were meanwhile."""
    files = [tmp_path / name for name in "abc"]
    config = model((0, 0), head_dim=80, n_kv=2)
    pools = [make_pool(load("cpu"), config, tier=tier, block_size=size) for size in (8, 64, 8)]
    doc = Sequence(pools[0])
    step(doc, DOC)
    agent = doc.fork()
    step(agent, [5] * 3)
    save_sequences(files[0], [doc, agent])
    for pool, before, after in zip(pools[1:], files, files[1:], strict=False):
        save_sequences(after, load_sequences(before, pool))
    tables = [load_sequences(f, make_pool(load("cpu"), config, tier=tier, block_size=8)) for f in files[::2]]
    for old, new in zip(*tables, strict=True):
        check = [(p.pool.read(i, p.block_tables[0].ids), p.length) for p in (old, new) for i in range(2)]
        for (a, n), (b, m) in zip(check[:2], check[2:], strict=True):
            assert n == m and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    save_sequences(tmp_path / "p", three(make_pool(PlainOps(), block_size=48))[0])
    with pytest.raises(MismatchError, match=r"^block size differs: the file .* has 48, this session .* has 64"):
        load_sequences(tmp_path / "p", make_pool(PlainOps(), block_size=64))


def test_a_size_that_is_no_part_of_a_unit(tmp_path: Path) -> None:
    """Exact cells become units of 64, so blocks of 128 are none that a session could have written."""
    tier = "f32,sink=5,recent=30"
    save_sequences(tmp_path / "p", three(make_pool(PlainOps(), tier=tier, block_size=64))[0])

    def larger(header: dict[str, Any], _: bytearray) -> None:
        told = json.loads(header["__metadata__"]["identity"])
        header["__metadata__"]["identity"] = json.dumps(told | {"block_size": 128})

    rewrite(tmp_path / "p", larger)
    with pytest.raises(MismatchError, match=r"^block size differs: the file .* has 128, this session .* has 64"):
        load_sequences(tmp_path / "p", make_pool(PlainOps(), tier=tier, block_size=64))


def test_a_window_that_begins_inside_a_block() -> None:
    """Ten blocks of 8, the first six given back: the pool's first block of 64 lacks its first 48 cells."""
    old, new = CacheGroup(0, 30, (), 8), CacheGroup(0, 30, (), 64)
    made = regroup([np.array([-1] * 6 + [0, 1, 2, 3], np.int32)], [78], [0], old, new)
    assert made.tables[0].tolist() == [0, 1] and made.since == (48,)
    assert made.pieces.tolist() == [[-1] * 6 + [0, 1], [2, 3] + [-1] * 6]
