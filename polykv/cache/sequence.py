"""One sequence: its tokens and, for every cache group, the table of blocks that hold them.

A step is `extend` (blocks for the new cells), the model writing K/V there, then `commit`. Full blocks are immutable:
whoever writes into a block that another table holds, or that can be found by its hash, copies it first or takes it
out of the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from polykv.cache.block_table import BlockTable
from polykv.cache.blocks import Prefix
from polykv.cache.group import Stage
from polykv.cache.mutation import mutation
from polykv.cache.pool import KVPool
from polykv.cache.reuse import find_prefix, named_by
from polykv.cache.slots import step_slots
from polykv.errors import CapacityError, ConfigError
from polykv.types import Slots


class Coming:
    """The tokens that some sequences get next: per group, how many blocks they take, and whether some are given back
    before."""

    def __init__(self, groups: int) -> None:
        self.taken, self.given_back = [0] * groups, [False] * groups

    @property
    def certain(self) -> bool:
        """Whether the blocks that are taken are known: not where those that are given back may be among them."""
        return not any(t and b for t, b in zip(self.taken, self.given_back, strict=True))


class Sequence:
    """Tokens and block tables of one sequence of a pool.

    length counts tokens, those of an uncommitted `extend` included. Sequences are not thread-safe, nor is the pool.
    """

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.length = 0
        self.tokens: list[int] = []
        self.block_tables = [BlockTable(lead=g.lead) for g in pool.groups]
        # Prefixes of the full blocks that were committed.
        self._chain: list[Prefix] = []
        self._pins: list[tuple[int, int]] = []
        pool.sequences.add(self)

    @property
    def pins(self) -> list[tuple[int, int]]:
        """(group, block) of every pin."""
        return self._pins

    @property
    def tables(self) -> list[list[int]]:
        """Block ids per group; -1 = a block that is not read any more (it slid out of a window, or is coded now)."""
        return [t.ids.tolist() for t in self.block_tables]

    # -- a step ------------------------------------------------------------------------------------------------
    @mutation
    def extend(self, ids: Iterable[int]) -> list[Slots]:
        """Append tokens and say, per group, where their K/V goes.

        Raises CapacityError when a group has no room; then nothing has changed.
        """
        new = [int(t) for t in ids]
        pool, start = self.pool, self.length
        end = start + len(new)
        fresh = [g.n_blocks(end) - g.n_blocks(start) for g in pool.groups]
        copies = [bool(new) and self._must_copy(g) for g in range(len(pool.groups))]
        for g, copy in enumerate(copies):
            pool.require(g, fresh[g] + copy)
        for g, copy in enumerate(copies):
            pool.make_room(g, fresh[g] + copy)
        try:
            for g, copy in enumerate(copies):
                self._open_last_block(g, copy, bool(new))
                table, manager = self.block_tables[g], pool.managers[g]
                for _ in range(fresh[g]):
                    table.append(manager.alloc())
            slots = step_slots(pool.groups, self.block_tables, start, end)
            self.tokens += new
            self.length = end
        except BaseException:
            # Room was made above, so this is Ctrl-C or the like: no table may keep more blocks than the tokens need.
            self._cut(start)
            del self.tokens[start:]
            self.length = start
            raise
        return slots

    def next_token(self, coming: Coming) -> tuple[list[Slots], list[BlockTable]] | None:
        """Where one more token would go, per group, and the tables that it would read, if `coming` sequences before
        this one get theirs first; None where it would change more than lengths and free blocks, in `extend` or in a
        `commit` of the tokens before: a block is copied or taken out of the prefix cache, or a unit becomes codes.
        """
        tables = list(self.block_tables)
        for g, (group, table, manager) in enumerate(zip(self.pool.groups, tables, self.pool.managers, strict=True)):
            coming.given_back[g] |= group.first_block(self.length) > table.first
            if group.n_blocks(self.length + 1) > group.n_blocks(self.length):
                block = None if group.stage is Stage.CODED else manager.coming(coming.taken[g])
                if block is None:
                    return None
                tables[g] = table.copy()
                tables[g].append(block)
                coming.taken[g] += 1
            elif self._partial(g) and (self._must_copy(g) or manager.prefix(int(table.ids[-1])) is not None):
                return None
        return step_slots(self.pool.groups, tables, self.length, self.length + 1), tables

    def _cut(self, length: int) -> None:
        """Shorten every table to the blocks of `length` tokens."""
        for group, table, manager in zip(self.pool.groups, self.block_tables, self.pool.managers, strict=True):
            table.cut(group.n_blocks(length), manager)

    def _partial(self, g: int) -> bool:
        """Is the last block of this group partly filled?"""
        group = self.pool.groups[g]
        return group.stage is not Stage.CODED and self.length % group.size != 0

    def _must_copy(self, g: int) -> bool:
        """Will writing the next cell touch a block that is not this sequence's alone?"""
        if not self._partial(g):
            return False
        b = int(self.block_tables[g].ids[-1])
        m = self.pool.managers[g]
        return m.refs(b) > 1 or (m.pinned(b) and m.prefix(b) is not None)

    def _open_last_block(self, g: int, copy: bool, writes: bool) -> None:
        """Make the partly filled last block writable."""
        if not writes or not self._partial(g):
            return
        table, m = self.block_tables[g], self.pool.managers[g]
        b = int(table.ids[-1])
        if copy:
            mine = m.alloc()
            try:
                self.pool.copy_block(g, b, mine)
            except BaseException:
                m.release(mine)
                raise
            table.ids[-1] = mine
            m.release(b)
            m.counters["cow"] += 1
        elif m.prefix(b) is not None:
            # Trimmed into a published block: its later cells are about to change.
            m.unpublish(b)

    @mutation
    def commit(self) -> None:
        """The K/V of all tokens is written: publish blocks that are full now, drop those that are not read any more."""
        size, pool = self.pool.block_size, self.pool
        for i in range(len(self._chain), self.length // size):
            parent = self._chain[-1] if i else None
            self._chain.append(Prefix(parent, tuple(self.tokens[i * size : (i + 1) * size]), pool.seed))
            for group, table, manager in zip(pool.groups, self.block_tables, pool.managers, strict=True):
                block, rest = divmod((i + 1) * size, group.size)
                if rest == 0 and table.ids[block - 1] >= 0 and (block - 1) * group.size >= table.since:
                    manager.publish(int(table.ids[block - 1]), self._chain[i])
        for group, table, manager in zip(pool.groups, self.block_tables, pool.managers, strict=True):
            table.drop(group.first_block(self.length), manager)

    # -- sharing -----------------------------------------------------------------------------------------------
    @mutation
    def fork(self) -> Sequence:
        """A second sequence with the same tokens that shares every block."""
        child = Sequence(self.pool)
        for table, manager in zip(self.block_tables, self.pool.managers, strict=True):
            for b in table.held():
                manager.retain(b)
        child.block_tables = [t.copy() for t in self.block_tables]
        child.tokens, child._chain, child.length = self.tokens.copy(), self._chain.copy(), self.length
        return child

    @classmethod
    def attach(cls, pool: KVPool, ids: Iterable[int], *, limit: int | None = None) -> tuple[Sequence, int]:
        """A sequence that starts with the longest cached prefix of `ids`, and that prefix's length.

        Whole blocks only, at most len(ids) - 1 tokens (one token has to be processed to get logits), at most `limit`.
        """
        with pool.lock:
            if pool.torn:
                pool.mend()
            return cls._attach(pool, ids, limit)

    @classmethod
    def _attach(cls, pool: KVPool, ids: Iterable[int], limit: int | None) -> tuple[Sequence, int]:
        tokens = [int(t) for t in ids]
        most = max(0, len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1))
        chain = find_prefix(pool, tokens[: most // pool.block_size * pool.block_size])
        seq = cls(pool)
        seq.length = len(chain) * pool.block_size
        seq.tokens = tokens[: seq.length]
        seq._chain = chain
        try:
            for g, group in enumerate(pool.groups):
                ids = np.full(group.n_blocks(seq.length), -1, np.int32)
                # The table knows of every block that it has a reference to, wherever this breaks off.
                seq.block_tables[g] = table = BlockTable(ids, group.first_block(seq.length), group.lead)
                for i in group.held(seq.length):
                    block = pool.managers[g].lookup(named_by(chain, group, pool.block_size, i))
                    if block is None:
                        raise RuntimeError("a cached block vanished between search and use")
                    table.ids[i] = block
        except BaseException:
            pool.torn = True
            raise
        pool.counters["prefix_tokens"] += seq.length
        return seq, seq.length

    @classmethod
    def restore(cls, pool: KVPool, ids: list[int], tables: list[BlockTable]) -> Sequence:
        """A sequence whose K/V is already in the blocks of `tables`, which it takes over; publishes the full ones."""
        seq = cls(pool)
        seq.length, seq.tokens, seq.block_tables = len(ids), ids, tables
        seq.commit()
        return seq

    # -- shortening --------------------------------------------------------------------------------------------
    @mutation
    def trim(self, length: int) -> None:
        """Forget all tokens from position `length` on.

        Cells that a query at `length` reads may have been dropped (out of a window, or coded since); they are taken
        back from the prefix cache. Raises CapacityError, changing nothing, when they are gone (process the tokens again
        then).
        """
        if not 0 <= length <= self.length:
            raise ConfigError(f"cannot trim a sequence of {self.length} tokens to {length}")
        size, pool = self.pool.block_size, self.pool
        back: list[list[int]] = []
        for group, table, manager in zip(pool.groups, self.block_tables, pool.managers, strict=True):
            lost = range(max(group.lead, group.first_block(length)), min(table.first, group.n_blocks(length)))
            found = [manager.find(named_by(self._chain, group, size, i)) for i in lost]
            back.append([b for b in found if b is not None])
            if len(back[-1]) != len(found) or (length and group.first_cell(length) < table.since):
                raise CapacityError(
                    f"cannot trim to {length} tokens: the sliding-window or exact cells before that position are gone; "
                    "start from the tokens again"
                )
        # Cells to keep are taken before any are given back.
        for blocks, manager in zip(back, pool.managers, strict=True):
            for b in blocks:
                manager.retain(b)
        self._cut(length)
        for group, blocks, table in zip(pool.groups, back, self.block_tables, strict=True):
            table.take_back(group.first_block(length), blocks)
        del self._chain[length // size :]
        del self.tokens[length:]
        self.length = length

    @mutation
    def free(self) -> None:
        """Give all blocks back (pinned ones stay, see `unpin`); the sequence is empty afterwards. Idempotent."""
        self._cut(0)
        self.length, self.tokens, self._chain = 0, [], []

    def mend(self) -> None:
        """Make length, tokens and tables agree after a change that broke off; for `KVPool.mend`, which counts anew."""
        size, groups = self.pool.block_size, self.pool.groups
        room = [g.longest(t.n) for g, t in zip(groups, self.block_tables, strict=True)]
        length = min([self.length, len(self.tokens), *room])
        tables = []
        for group, table in zip(groups, self.block_tables, strict=True):
            ids = table.ids[: group.n_blocks(length)].copy()
            if any(ids[i] < 0 for i in group.held(length)):
                # Cells that the next token reads are not there any more: nothing can be continued.
                tables, length = [BlockTable(lead=g.lead) for g in groups], 0
                break
            gone = np.flatnonzero(ids < 0)
            tables.append(BlockTable(ids, int(gone[-1]) + 1 if len(gone) else 0, group.lead, table.since))
        self.block_tables, self.length = tables, length
        self.tokens, self._chain = self.tokens[:length], self._chain[: length // size]

    def __del__(self) -> None:
        # Nobody gives its blocks back any more. A finalizer may run in the middle of anything, so only a word is left.
        # AttributeError: its construction was interrupted, so it holds nothing.
        with suppress(AttributeError):
            try:
                if self._pins or any(t.n > (0 if t.lead else t.first) for t in self.block_tables):
                    self.pool.lost = True
            except BaseException:
                # Ctrl-C, which no finalizer can pass on.
                self.pool.lost = True
                raise

    # -- pins and reports --------------------------------------------------------------------------------------
    @mutation
    def pin(self) -> None:
        """Keep the blocks that this sequence holds now, even after `free`, until `unpin`."""
        new = [(g, b) for g, t in enumerate(self.block_tables) for b in t.held()]
        for g, b in new:
            self.pool.managers[g].pin(b)
        self.unpin()
        self._pins = new

    @mutation
    def unpin(self) -> None:
        for g, b in self._pins:
            self.pool.managers[g].unpin(b)
        self._pins = []

    def used_blocks(self) -> list[set[int]]:
        """Block ids that this sequence holds, per group."""
        return [set(t.held()) for t in self.block_tables]

    def shared_blocks(self) -> list[int]:
        """Number of its blocks, per group, that other tables hold too."""
        return [
            sum(m.refs(b) > 1 for b in t.held()) for t, m in zip(self.block_tables, self.pool.managers, strict=True)
        ]

    def private_blocks(self) -> list[int]:
        """Number of its blocks, per group, that no other table holds."""
        return [
            sum(m.refs(b) == 1 for b in t.held()) for t, m in zip(self.block_tables, self.pool.managers, strict=True)
        ]
