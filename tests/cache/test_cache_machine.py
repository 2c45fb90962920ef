"""Random histories of sequences and blocks against plain token lists."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from fakes import PlainOps, check_contents, check_segments, make_pool, model, write
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polykv.cache.blocks import BlockManager, Prefix
from polykv.cache.group import Stage
from polykv.cache.sequence import Sequence
from polykv.errors import CapacityError
from polykv.types import UNIT


class SequenceMachine(RuleBasedStateMachine):
    """Sequences of one small pool; few distinct tokens, so that prefixes collide in content often."""

    max_tokens = 2048
    block_size = 32
    tier = "f32"

    def __init__(self) -> None:
        super().__init__()
        config, sizes = model((0, 70)), {"block_size": self.block_size, "max_tokens": self.max_tokens}
        self.pool = make_pool(PlainOps(), config, tier=self.tier, **sizes)
        self.live: list[tuple[Sequence, list[int]]] = []
        self.pinned: list[Sequence] = []

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.live) - 1))

    @rule(n=st.sampled_from([1, 5, 31, 32, 33, 100, 300]), token=st.integers(0, 2))
    @precondition(lambda self: len(self.live) < 6)
    def begin(self, n: int, token: int) -> None:
        """Look for a cached prefix, then process the rest."""
        prompt = [token] * n
        seq, reused = Sequence.attach(self.pool, prompt)
        assert reused == seq.length < n and reused % self.pool.block_size == 0
        check_contents(seq, prompt[:reused])
        self.live.append((seq, prompt[:reused]))
        self.grow(len(self.live) - 1, prompt[reused:])

    def grow(self, i: int, tokens: list[int]) -> None:
        seq, have = self.live[i]
        before = (seq.tables, list(seq.tokens), [m.n_used for m in self.pool.managers])
        try:
            slots = seq.extend(tokens)
        except CapacityError:
            assert before == (seq.tables, list(seq.tokens), [m.n_used for m in self.pool.managers])
            return
        for g, s in zip(self.pool.groups, slots, strict=True):
            m = self.pool.managers[g.exact if g.stage is Stage.CODED else g.index]
            # Only blocks that this sequence alone holds and that nobody can find are written.
            assert all(m.refs(b) == 1 and m.prefix(b) is None for b in s.blocks.tolist())
        write(self.pool, slots, tokens, len(have))
        if tokens:
            check_segments(self.pool, [(seq, len(tokens))])
        seq.commit()
        have += tokens

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 2), max_size=70))
    @precondition(lambda self: self.live)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        self.grow(self.pick(data), tokens)

    @rule(data=st.data())
    @precondition(lambda self: 0 < len(self.live) < 6)
    def fork(self, data: st.DataObject) -> None:
        seq, have = self.live[self.pick(data)]
        self.live.append((seq.fork(), have.copy()))

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def trim(self, data: st.DataObject) -> None:
        seq, have = self.live[self.pick(data)]
        n = data.draw(st.one_of(st.just(max(0, len(have) - 1)), st.integers(0, len(have))))
        before = seq.tables
        try:
            seq.trim(n)
        except CapacityError:
            assert seq.tables == before
            return
        del have[n:]

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def free(self, data: st.DataObject) -> None:
        seq, _ = self.live.pop(self.pick(data))
        seq.free()
        seq.free()
        assert seq.length == 0 and not any(seq.used_blocks())

    @rule(data=st.data())
    @precondition(lambda self: self.live and len(self.pinned) < 2)
    def pin(self, data: st.DataObject) -> None:
        seq, _ = self.live[self.pick(data)]
        seq.pin()
        if seq not in self.pinned:
            self.pinned.append(seq)

    @rule()
    @precondition(lambda self: self.pinned)
    def unpin(self) -> None:
        self.pinned.pop().unpin()

    @rule()
    @precondition(lambda self: self.live)
    def step_all(self) -> None:
        """One more token for everybody, in one step."""
        begun = []
        for seq, have in self.live:
            try:
                slots = seq.extend([1])
            except CapacityError:
                continue
            write(self.pool, slots, [1], len(have))
            begun.append((seq, 1))
            have.append(1)
        check_segments(self.pool, begun)
        for seq, _ in begun:
            seq.commit()

    @invariant()
    def contents(self) -> None:
        for seq, have in self.live:
            check_contents(seq, have)

    @invariant()
    def references(self) -> None:
        for g, m in enumerate(self.pool.managers):
            held = Counter(b for seq, _ in self.live for b in seq.block_tables[g].held())
            assert [m.refs(b) for b in range(m.n_blocks)] == [held[b] for b in range(m.n_blocks)]
            pinned = {b for b in range(m.n_blocks) if m.pinned(b)}
            assert m.n_used == len(held.keys() | pinned)
            assert m.n_blocks <= self.pool.max_blocks(g)
        for seq, have in self.live:
            for g, group in enumerate(self.pool.groups):
                cells = len(seq.block_tables[g].held()) * group.size
                if group.window and len(have) and group.stage is not Stage.EXACT:
                    assert cells <= group.window + 2 * group.size
                if group.stage is Stage.EXACT:
                    assert cells <= (group.lead + 1) * group.size + group.recent + 2 * UNIT

    def teardown(self) -> None:
        for seq, _ in self.live:
            seq.free()
        for seq in self.pinned:
            seq.unpin()
        assert all(m.n_used == 0 for m in self.pool.managers)


class TightMachine(SequenceMachine):
    """So little room that eviction and refusals happen all the time."""

    max_tokens = 512


class FineMachine(SequenceMachine):
    """Several blocks in a unit of attention."""

    block_size = 8


class StagedMachine(SequenceMachine):
    """Cells that are exact at first and coded in units of 64."""

    block_size = 16
    tier = "f32,sink=5,recent=40"


class TightStagedMachine(StagedMachine):
    """The same, of unequal layers and with little room."""

    max_tokens, block_size = 512, 8
    tier = "f32,sink=20,1=f32,recent=1"


common = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
TestSequences = SequenceMachine.TestCase
TestSequences.settings = common
TestFine = FineMachine.TestCase
TestFine.settings = common
TestTight = TightMachine.TestCase
TestTight.settings = common
TestStaged = StagedMachine.TestCase
TestStaged.settings = common
TestTightStaged = TightStagedMachine.TestCase
TestTightStaged.settings = common


class BlockMachine(RuleBasedStateMachine):
    """Reference counts, pins and published contents against dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.m = BlockManager(3)
        self.refs: Counter[int] = Counter()
        self.pins: Counter[int] = Counter()
        self.content: dict[int, tuple[int, ...]] = {}

    def used(self) -> set[int]:
        return {b for b in range(self.m.n_blocks) if self.refs[b] or self.pins[b]}

    def draw(self, data: st.DataObject, blocks: set[int]) -> int | None:
        return data.draw(st.sampled_from(sorted(blocks))) if blocks else None

    @rule()
    def alloc(self) -> None:
        cached = {b for b in self.content if b not in self.used()}
        free = self.m.n_blocks - len(self.used()) - len(cached)
        if len(self.used()) == self.m.n_blocks:
            with pytest.raises(CapacityError):
                self.m.alloc()
            return
        b = self.m.alloc()
        assert b not in self.used()
        # A cached block is only taken when no free one is left.
        assert (b in cached) == (free == 0)
        self.content.pop(b, None)
        self.refs[b] = 1

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        b = self.draw(data, {b for b in self.refs if self.refs[b]})
        if b is not None:
            self.m.release(b, cold=data.draw(st.booleans()))
            self.refs[b] -= 1

    @rule(data=st.data(), token=st.integers(0, 3))
    def publish(self, data: st.DataObject, token: int) -> None:
        b = self.draw(data, {b for b in self.refs if self.refs[b] and b not in self.content})
        if b is not None:
            self.m.publish(b, Prefix(None, (token,), b""))
            self.content[b] = (token,)

    @rule(token=st.integers(0, 3))
    def lookup(self, token: int) -> None:
        b = self.m.lookup(Prefix(None, (token,), b""))
        assert (b is None) == ((token,) not in self.content.values())
        if b is not None:
            assert self.content[b] == (token,)
            self.refs[b] += 1

    @rule(data=st.data())
    def unpublish(self, data: st.DataObject) -> None:
        b = self.draw(data, {b for b in self.content if self.refs[b]})
        if b is not None:
            self.m.unpublish(b)
            del self.content[b]

    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        b = self.draw(data, self.used() | set(self.content))
        if b is not None:
            self.m.pin(b)
            self.pins[b] += 1

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        b = self.draw(data, {b for b in self.pins if self.pins[b]})
        if b is not None:
            self.m.unpin(b)
            self.pins[b] -= 1

    @rule(n=st.integers(0, 8))
    def grow(self, n: int) -> None:
        before = self.m.n_blocks
        self.m.grow(n)
        assert self.m.n_blocks == max(before, n)

    @invariant()
    def counts(self) -> None:
        assert self.m.n_used == len(self.used())
        assert self.m.n_used + self.m.n_free == self.m.n_blocks
        assert all(self.m.refs(b) == self.refs[b] for b in range(self.m.n_blocks))
        # A block's content is known as long as the block is used or cached, and not longer.
        for b in range(self.m.n_blocks):
            held = self.m.prefix(b)
            assert (held.tokens if held else None) == self.content.get(b)


TestBlocks = BlockMachine.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_machine_notices_a_missing_copy_on_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the machine itself: without the copy a fork overwrites its parent."""
    monkeypatch.setattr(Sequence, "_must_copy", lambda self, g: False)
    pool = make_pool(PlainOps())
    parent = Sequence(pool)
    write(pool, parent.extend([1] * 10), [1] * 10, 0)
    child = parent.fork()
    write(pool, child.extend([2]), [2], 10)
    write(pool, parent.extend([3]), [3], 10)
    with pytest.raises(AssertionError):
        check_contents(child, [1] * 10 + [2])
    assert np.isfinite(pool.layer(0).k.fields["x"][parent.tables[0][0], :11]).all()
