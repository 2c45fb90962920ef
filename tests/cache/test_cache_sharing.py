"""Sharing: forks, copies on write, cascade plans, prefix reuse with and without windows, capacity, measured bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import check_contents, check_segments, make_pool, model, step, write

from polykv.cache import blocks
from polykv.cache.pool import KVPool
from polykv.cache.segments import plan_segments
from polykv.cache.sequence import Sequence
from polykv.errors import CapacityError, ConfigError

DOC = [(7 * i + i // 50) % 900 for i in range(874)]


def snapshot(pool: KVPool, seq: Sequence) -> list[bytes]:
    """Raw bytes of all blocks that a sequence holds."""
    return [
        a[[b for b in seq.tables[pool.group_of(i)] if b >= 0]].tobytes()
        for i in range(len(pool.model.layers))
        for arena in (pool.layer(i).k, pool.layer(i).v)
        for a in arena.fields.values()
    ]


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 100])
def test_forks_share_and_copy_only_the_open_block(ops: Any, n: int) -> None:
    pool = make_pool(ops)
    doc = Sequence(pool)
    step(doc, DOC[:n])
    before = snapshot(pool, doc)
    forks = [doc.fork() for _ in range(3)]
    assert all(m.n_used == -(-n // 32) for m, g in zip(pool.managers, pool.groups, strict=True) if not g.window)
    for k, f in enumerate(forks):
        step(f, [k + 1, 5])
        check_contents(f, [*DOC[:n], k + 1, 5])
    check_contents(doc, DOC[:n])
    assert snapshot(pool, doc) == before
    copies = [m.counters["cow"] for m in pool.managers]
    assert copies == [0 if n % 32 == 0 else 3] * len(pool.groups)
    for s in (doc, *forks):
        s.free()
    assert all(m.n_used == 0 for m in pool.managers) and pool.used_nbytes == 0


@pytest.mark.parametrize("windows", [(0, 0), (0, 512)])
def test_eight_agents_on_one_document_take_six_times_fewer_cells(plain: Any, windows: tuple[int, ...]) -> None:
    pool, separate = (make_pool(plain, model(windows), block_size=8, max_tokens=1 << 14) for _ in range(2))
    doc = Sequence(pool)
    step(doc, DOC)
    doc.pin()
    agents = [doc.fork() for _ in range(8)]
    for k, a in enumerate(agents):
        step(a, [k + 1] * 30)
        step(Sequence(separate), DOC + [k + 1] * 30)
        check_contents(a, DOC + [k + 1] * 30)
    cells, alone = (p.managers[0].n_used * p.block_size for p in (pool, separate))
    # ceil(P/B) + four private blocks each, against everybody's own.
    assert cells == (110 + 8 * 4) * 8 and alone == 8 * 113 * 8
    assert alone >= 6 * cells
    if windows[1]:
        # The window reaches 65 blocks back from the document's end, and 64 from every agent's end.
        assert [p.managers[1].n_used for p in (pool, separate)] == [65 + 8 * 4, 8 * 64]
    else:
        assert separate.used_nbytes >= 6 * pool.used_nbytes
    held = [set().union(*(a.used_blocks()[g] for a in (doc, *agents))) for g in range(len(pool.groups))]
    assert [len(h) for h in held] == [m.n_used for m in pool.managers]


def test_cascade_reads_the_common_part_once_per_level(plain: Any) -> None:
    pool = make_pool(plain, model((0,)), max_tokens=1 << 14)
    doc = Sequence(pool)
    step(doc, DOC[:320])
    chapters = [doc.fork(), doc.fork()]
    for k, c in enumerate(chapters):
        step(c, [k + 1] * 64)
    agents = [c.fork() for c in chapters for _ in range(3)]
    for k, a in enumerate(agents):
        step(a, [k + 1] * 10)
    for a in agents:
        write(pool, a.extend([9]), [9], a.length - 1)
    pool.counters.clear()
    (plan,) = plan_segments(pool, [(a, 1) for a in agents])
    got = sorted((s.start, s.length, tuple(s.rows.tolist())) for s in plan)
    assert got == [
        (0, 320, (0, 1, 2, 3, 4, 5)),
        (320, 64, (0, 1, 2)),
        (320, 64, (3, 4, 5)),
        *((384, 11, (r,)) for r in range(6)),
    ]
    assert pool.counters["shared_segments"] == 3 and pool.counters["shared_rows"] == 12
    assert pool.counters["cells"] == 320 + 128 + 6 * 11 and pool.counters["shared_cells"] == 448
    check_segments(pool, [(a, 1) for a in agents])


def test_plan_of_ragged_steps_and_windows(plain: Any) -> None:
    pool = make_pool(plain, model((0, 70, 200)), max_tokens=1 << 14)
    doc = Sequence(pool)
    step(doc, DOC[:500])
    agents = [doc.fork() for _ in range(4)]
    for k, a in enumerate(agents):
        step(a, [k] * (40 * k))
    batch = []
    for k, a in enumerate(agents):
        n = (1, 7, 0, 90)[k]
        write(pool, a.extend([k] * n), [k] * n, a.length - n)
        batch.append((a, n))
    check_segments(pool, batch)
    assert pool.counters["shared_segments"] >= 2
    assert [len(p) for p in plan_segments(pool, [])] == [0, 0, 0]
    assert all(len(p.positions) == 0 and len(p) == 0 for p in plan_segments(pool, [(agents[0], 0)]))


def test_a_long_prefill_holds_window_chunk_and_block(plain: Any) -> None:
    window, chunk, size = 96, 100, 32
    pool = make_pool(plain, model((0, window)), block_size=size, max_tokens=1 << 14)
    seq, most = Sequence(pool), 0
    for i in range(40):
        tokens = DOC[i : i + chunk]
        slots = seq.extend(tokens)
        most = max(most, pool.managers[1].n_used)
        write(pool, slots, tokens, i * chunk)
        seq.commit()
        assert pool.managers[1].n_used * size <= window + size
    assert most * size <= window + chunk + size
    # The arrays too are those of a window, not of 4,000 tokens.
    assert pool.managers[1].n_blocks <= 1.25 * most and pool.managers[0].n_blocks >= 125
    assert pool.used_nbytes == sum(m.n_used * pool.block_nbytes(g) for g, m in enumerate(pool.managers))


@pytest.mark.parametrize("n", [1, 32, 33, 64, 65, 200])
def test_reuse_takes_whole_blocks_and_leaves_a_token(ops: Any, n: int) -> None:
    pool = make_pool(ops)
    first = Sequence(pool)
    step(first, DOC[:n])
    first.free()
    seq, reused = Sequence.attach(pool, DOC[:n])
    assert reused == seq.length == (n - 1) // 32 * 32
    check_contents(seq, DOC[:reused])
    step(seq, DOC[reused:n])
    check_contents(seq, DOC[:n])
    limited, reused = Sequence.attach(pool, DOC[:n], limit=40)
    assert reused == min((n - 1) // 32 * 32, 32)
    other, reused = Sequence.attach(pool, [DOC[0] + 1, *DOC[1:n]])
    assert reused == 0 and other.length == limited.length - limited.length
    assert pool.managers[0].counters["hit"] > 0 or n <= 32


def test_reuse_with_a_window_after_another_turn_went_on(plain: Any) -> None:
    """A second question on the same document: reuse reaches into the document although the first run slid past it."""
    pool = make_pool(plain, model((0, 96)), max_tokens=1 << 14)
    first = Sequence(pool)
    for i in range(0, 800, 100):
        step(first, DOC[i : i + 100])
    for _ in range(60):
        step(first, [1])
    first.free()
    seq, reused = Sequence.attach(pool, DOC[:800] + [2] * 20)
    assert reused == 800 // 32 * 32
    check_contents(seq, DOC[:reused])


def test_a_finished_prefix_outlives_a_long_run_of_another_sequence(plain: Any) -> None:
    """There is room to grow, and the other one leaves blocks behind its window: neither takes from the cache."""
    pool = make_pool(plain, model((0, 96)), max_tokens=1 << 14)
    done = Sequence(pool)
    step(done, DOC[:200])
    done.free()
    other = Sequence(pool)
    for i in range(40):
        step(other, [i] * 50)
    assert Sequence.attach(pool, DOC[:200])[1] == 192
    assert pool.managers[0].counters["evicted"] == 0 < pool.managers[1].counters["evicted"]


def test_the_end_of_a_cached_prefix_is_recycled_first(plain: Any) -> None:
    pool = make_pool(plain, model((0,)), max_tokens=6 * 32)
    done = Sequence(pool)
    step(done, DOC[:128])
    done.free()
    step(Sequence(pool), [1] * 96)
    assert pool.managers[0].counters["evicted"] == 1
    assert Sequence.attach(pool, DOC[:129])[1] == 96


def test_reuse_stops_where_window_cells_are_gone(plain: Any) -> None:
    pool = make_pool(plain, model((0, 64)), max_tokens=1 << 14)
    first = Sequence(pool)
    for i in range(0, 800, 32):
        step(first, DOC[i : i + 32])
    # Blocks of the middle have been recycled; the prefix of 320 tokens has no window left, the whole has.
    assert Sequence.attach(pool, DOC[:330])[1] == 0
    seq, reused = Sequence.attach(pool, [*DOC[:800], 1])
    assert reused == 800
    check_contents(seq, DOC[:800])
    with pytest.raises(CapacityError, match="sliding-window"):
        seq.trim(330)
    check_contents(seq, DOC[:800])


def test_pinned_document_survives_pressure_with_its_window(plain: Any) -> None:
    """The same request six times between others, in a pool so small that everything else is recycled."""
    pool = make_pool(plain, model((0, 96)), max_tokens=1024)
    doc = Sequence(pool)
    step(doc, DOC[:320])
    doc.pin()
    doc.free()
    for k in range(6):
        seq, reused = Sequence.attach(pool, [*DOC[:320], k])
        assert reused == 320
        check_contents(seq, DOC[:320])
        step(seq, [k] * 100)
        seq.free()
        other = Sequence(pool)
        step(other, [k + 1] * 600)
        other.free()
    doc.unpin()
    step(other, [1] * 1024)
    assert Sequence.attach(pool, DOC[:320])[1] == 0
    assert all(m.counters["evicted"] > 0 for m in pool.managers)


def test_collisions_of_the_hash_are_harmless(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "chain_hash", lambda parent, tokens: b"same")
    pool = make_pool(plain)
    prompts = [[1] * 100, [2] * 32 + [1] * 68, [1] * 32 + [2] * 68]
    for p in prompts:
        seq, reused = Sequence.attach(pool, p)
        # Equal leading blocks are found in spite of the collisions, and equal blocks after other prefixes are not.
        assert reused == (32 if p is prompts[2] else 0)
        step(seq, p[reused:])
    for p in prompts:
        seq, reused = Sequence.attach(pool, p)
        assert reused == 96
        check_contents(seq, p[:96])


def test_salts_and_identities_keep_prefixes_apart(plain: Any) -> None:
    seeds = {make_pool(plain, salt=s, fingerprint=f).seed for s in (b"", b"a", b"b") for f in ("m", "n")}
    seeds |= {make_pool(plain, model(base=5e5)).seed, make_pool(plain, tier="f16").seed}
    assert len(seeds) == 8


def test_trim_into_a_shared_block_then_extend(ops: Any) -> None:
    pool = make_pool(ops)
    a = Sequence(pool)
    step(a, DOC[:100])
    b = a.fork()
    b.trim(70)
    check_contents(b, DOC[:70])
    step(b, [3] * 40)
    check_contents(b, DOC[:70] + [3] * 40)
    check_contents(a, DOC[:100])
    assert a.shared_blocks()[0] == b.shared_blocks()[0] == 2
    assert a.private_blocks()[0] == 2 and a.used_blocks()[0] & b.used_blocks()[0] == set(a.tables[0][:2])


def test_trim_into_an_own_published_block_takes_it_out_of_the_cache(plain: Any) -> None:
    pool = make_pool(plain, model((0,)))
    a = Sequence(pool)
    step(a, DOC[:64])
    a.trim(40)
    step(a, [1] * 30)
    assert pool.managers[0].counters["cow"] == 0
    check_contents(a, DOC[:40] + [1] * 30)
    assert Sequence.attach(pool, DOC[:65])[1] == 32
    with pytest.raises(ConfigError, match="trim"):
        a.trim(71)


def test_a_pinned_block_is_not_overwritten_by_its_own_sequence(plain: Any) -> None:
    pool = make_pool(plain, model((0,)))
    a = Sequence(pool)
    step(a, DOC[:64])
    a.pin()
    a.trim(40)
    step(a, [1] * 30)
    a.free()
    seq, reused = Sequence.attach(pool, DOC[:65])
    assert reused == 64 and pool.managers[0].counters["cow"] == 1
    check_contents(seq, DOC[:64])


def test_refused_growth_changes_nothing(ops: Any) -> None:
    pool = make_pool(ops, max_tokens=128)
    a = Sequence(pool)
    step(a, DOC[:70])
    b = a.fork()
    before = (a.tables, b.tables, a.tokens.copy(), [m.n_used for m in pool.managers], pool.nbytes, snapshot(pool, a))
    with pytest.raises(CapacityError, match=r"needs 2 more blocks of 32 tokens, 1 of 4"):
        b.extend([1] * 30)
    assert before == (a.tables, b.tables, b.tokens, [m.n_used for m in pool.managers], pool.nbytes, snapshot(pool, a))
    step(b, [1] * 26)
    check_contents(b, DOC[:70] + [1] * 26)
    with pytest.raises(CapacityError, match="limit is 4"):
        pool.reserve(0, 5)


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("where", ["alloc", "copy_block"])
def test_an_interrupted_extend_changes_nothing(
    plain: Any, monkeypatch: pytest.MonkeyPatch, where: str, calls: int
) -> None:
    """Ctrl-C in the middle of bookkeeping: no block is lost and the sequence goes on."""
    pool = make_pool(plain, model((0, 96)))
    doc = Sequence(pool)
    step(doc, DOC[:70])
    fork = doc.fork()
    used = [m.n_used for m in pool.managers]
    left = [calls]
    cls: Any = {"alloc": blocks.BlockManager, "copy_block": KVPool}[where]
    real = getattr(cls, where)

    def interrupted(*args: Any) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*args)

    with monkeypatch.context() as m:
        m.setattr(cls, where, interrupted)
        if where == "copy_block" and calls > 1:
            fork.extend([1] * 60)
            fork.trim(70)
        else:
            with pytest.raises(KeyboardInterrupt):
                fork.extend([1] * 60)
    check_contents(fork, DOC[:70])
    fork.free()
    assert [m.n_used for m in pool.managers] == used
    step(doc, [2] * 60)
    check_contents(doc, DOC[:70] + [2] * 60)


def test_a_full_group_is_noticed_before_another_grows(plain: Any) -> None:
    pool = make_pool(plain, model((0, 96)), max_tokens=256)
    pool.reserve(1, 8)
    for _ in range(6):
        pool.managers[1].alloc()
    before = pool.nbytes
    with pytest.raises(CapacityError, match=r"window 96.*needs 4 more blocks"):
        Sequence(pool).extend([1] * 100)
    assert pool.nbytes == before and pool.managers[0].n_used == 0


def test_growth_that_ran_out_of_memory_can_be_tried_again(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(plain)
    seq = Sequence(pool)
    step(seq, DOC[:30])
    left, real = [3], plain.kv_alloc

    def scarce(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError
        return real(*args, **options)

    monkeypatch.setattr(plain, "kv_alloc", scarce)
    with pytest.raises(MemoryError):
        seq.extend([1] * 200)
    check_contents(seq, DOC[:30])
    step(seq, [1] * 100)
    check_contents(seq, DOC[:30] + [1] * 100)


def test_bytes_are_those_of_the_arrays(ops: Any) -> None:
    pool = make_pool(ops, tier="f32")
    for g in range(2):
        pool.reserve(g, 5 + g)
        pool.reserve(g, 2)
        assert pool.managers[g].n_blocks == 5 + g
    arrays = [a for i in range(3) for s in (pool.layer(i).k, pool.layer(i).v) for a in s.fields.values()]
    assert pool.nbytes == sum(a.nbytes for a in arrays)
    assert pool.nbytes == 5 * pool.block_nbytes(0) + 6 * pool.block_nbytes(1)
    assert pool.block_nbytes(0) == 2 * pool.block_nbytes(1) == 2 * 2 * 32 * 32 * 4
    assert pool.used_nbytes == 0
    step(Sequence(pool), DOC[:40])
    assert pool.used_nbytes == 2 * pool.block_nbytes(0) + 2 * pool.block_nbytes(1)


def test_layers_stay_the_same_objects_while_the_pool_grows(plain: Any) -> None:
    pool = make_pool(plain)
    layer = pool.layer(0)
    seq = Sequence(pool)
    for i in range(0, 3200, 40):
        step(seq, DOC[i % 800 : i % 800 + 40])
    check_contents(seq, DOC[:800] * 4)
    assert pool.layer(0) is layer and layer.k.n_blocks == pool.managers[0].n_blocks >= 100
    # Geometric: both groups together grew far less often than blocks were added.
    assert pool.counters["grown"] <= 20


@pytest.mark.parametrize("kw", [{"block_size": 44}, {"block_size": 0}, {"max_tokens": 0}])
def test_bad_settings_are_refused(plain: Any, kw: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        make_pool(plain, **kw)  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", ["q8_0/turbo3", "f16", "q4_0/q8_0", "turbo3"])
def test_codes_survive_growth_copies_and_forks(ops: Any, tier: str) -> None:
    """With real codecs: what a fork reads is byte for byte what its parent reads."""
    pool = make_pool(ops, model((0, 96), head_dim=64, n_kv=2), tier=tier)
    a = Sequence(pool)
    step(a, DOC[:75])
    b = a.fork()
    step(b, [1] * 200)
    for i in range(2):
        g = pool.group_of(i)
        if pool.groups[g].window:
            continue
        for arena in (pool.layer(i).k, pool.layer(i).v):
            old = pool.ops.kv_read(arena, np.array(a.tables[g], np.int32)).reshape(-1, 2, 64)[:75]
            new = pool.ops.kv_read(arena, np.array(b.tables[g], np.int32)).reshape(-1, 2, 64)[:75]
            assert np.array_equal(old, new) and np.isfinite(new).all()
