"""Which blocks are used, shared, cached or free: integers only, no arrays.

A block is in exactly one of four states:

    used     some table holds it (refs > 0), or it is pinned
    warm     refs 0, published, last held by a sequence that ended: kept as prefix cache
    cold     refs 0, published, slid out of the window of a running sequence: cache too, but the first to be recycled
    free     refs 0 and nothing in it is worth finding

A full block is *published* under the chained hash of all tokens up to its end (vLLM's automatic prefix caching,
docs/POOL.md). A hit is believed only after the token ids of the whole prefix were compared, so a hash collision costs
a miss and never shows one sequence the cells of another.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from polykv.errors import CapacityError


def chain_hash(parent: bytes, tokens: Iterable[int]) -> bytes:
    """h_i = blake2b(h_{i-1}, tokens of block i), 16 bytes.

    >>> chain_hash(b"", [1, 2]) == chain_hash(b"", (1, 2)), chain_hash(b"", [1, 2]) == chain_hash(b"x", [1, 2])
    (True, False)
    """
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class Prefix:
    """The tokens of one full block and, through `parent`, of all blocks before it; `key` is the chained hash."""

    __slots__ = ("key", "parent", "tokens")

    def __init__(self, parent: Prefix | None, tokens: tuple[int, ...], seed: bytes) -> None:
        self.parent = parent
        self.tokens = tokens
        self.key: bytes = chain_hash(parent.key if parent is not None else seed, tokens)

    def same_tokens(self, other: Prefix) -> bool:
        """Compare the token ids of the whole prefix; nodes that both sides share end the walk early."""
        a: Prefix | None = self
        b: Prefix | None = other
        while a is not b:
            if a is None or b is None or a.tokens != b.tokens:
                return False
            a, b = a.parent, b.parent
        return True


class BlockManager:
    """Reference counts, pins, prefix hashes and the LRU order of `n_blocks` blocks.

    `counters`: "alloc", "evicted" (a cached block was recycled), "hit", "miss" (lookups), "cow" (copies on write,
    counted by the sequence that copies), "dropped" (blocks that slid out of a window).

    >>> m = BlockManager(2)
    >>> b = m.alloc()
    >>> m.publish(b, Prefix(None, (7, 8), b"seed"))
    >>> m.release(b)
    >>> m.lookup(Prefix(None, (7, 8), b"seed")) == b, m.refs(b)
    (True, 1)
    """

    def __init__(self, n_blocks: int) -> None:
        self.counters: Counter[str] = Counter()
        self._refs: list[int] = []
        self._pins: list[int] = []
        self._prefix: list[Prefix | None] = []
        self._free: list[int] = []
        self._cold: OrderedDict[int, None] = OrderedDict()
        self._warm: OrderedDict[int, None] = OrderedDict()
        self._by_key: dict[bytes, list[int]] = {}
        self.grow(n_blocks)

    # -- sizes -------------------------------------------------------------------------------------------------
    @property
    def n_blocks(self) -> int:
        return len(self._refs)

    @property
    def n_spare(self) -> int:
        """Blocks that can be handed out without losing a prefix that a finished sequence left behind."""
        return len(self._free) + len(self._cold)

    @property
    def n_free(self) -> int:
        """Blocks that `alloc` can hand out: free, cold and warm ones."""
        return self.n_spare + len(self._warm)

    @property
    def n_used(self) -> int:
        return self.n_blocks - self.n_free

    def grow(self, n_blocks: int) -> None:
        """Raise the total number of blocks to `n_blocks`."""
        old = self.n_blocks
        more = max(0, n_blocks - old)
        self._refs += [0] * more
        self._pins += [0] * more
        self._prefix += [None] * more
        # The free list is a stack: lowest ids on top, so that a new sequence gets neighbouring blocks.
        self._free = list(range(old + more - 1, old - 1, -1)) + self._free

    # -- references --------------------------------------------------------------------------------------------
    def alloc(self) -> int:
        """A block with one reference; recycles the least recently used cached block when none is free.

        Raises CapacityError when every block is in use.
        """
        if self._free:
            b = self._free.pop()
        elif self._cold or self._warm:
            b, _ = (self._cold or self._warm).popitem(last=False)
            self._forget(b)
            self.counters["evicted"] += 1
        else:
            raise CapacityError(f"all {self.n_blocks} blocks are in use; free a sequence or raise the context size")
        self._refs[b] = 1
        self.counters["alloc"] += 1
        return b

    def coming(self, n: int) -> int | None:
        """What `alloc` will return after n more calls, if it is a free block: nothing in it is worth finding."""
        return self._free[-1 - n] if n < len(self._free) else None

    def refs(self, b: int) -> int:
        """Number of tables that hold block b."""
        return self._refs[b]

    def retain(self, b: int) -> None:
        """One more table holds block b, which must be in use or cached."""
        if self._refs[b] == 0 and self._pins[b] == 0:
            if self._prefix[b] is None:
                raise RuntimeError(f"block {b} is free: it cannot be retained")
            self._cold.pop(b, None)
            self._warm.pop(b, None)
        self._refs[b] += 1

    def release(self, b: int, *, cold: bool = False) -> None:
        """One table less holds block b. `cold`: it slid out of a window, so it is recycled before other cached ones."""
        if self._refs[b] == 0:
            raise RuntimeError(f"block {b} is released more often than it was taken")
        self._refs[b] -= 1
        self._settle(b, cold)

    def pin(self, b: int) -> None:
        """Keep block b even when no table holds it; pins are counted."""
        if self._refs[b] == 0 and self._pins[b] == 0:
            # A pinned block leaves the queues just as a retained one does.
            self.retain(b)
            self._refs[b] -= 1
        self._pins[b] += 1

    def unpin(self, b: int) -> None:
        if self._pins[b] == 0:
            raise RuntimeError(f"block {b} is not pinned")
        self._pins[b] -= 1
        self._settle(b, cold=False)

    def pinned(self, b: int) -> bool:
        return self._pins[b] > 0

    def _settle(self, b: int, cold: bool) -> None:
        """Put a block that nothing holds any more where `alloc` finds it."""
        if self._refs[b] or self._pins[b]:
            return
        if self._prefix[b] is None:
            self._free.append(b)
        elif cold:
            self._cold[b] = None
        else:
            self._warm[b] = None

    def recount(self, refs: Mapping[int, int], pins: Mapping[int, int]) -> None:
        """Believe these numbers of tables and pins per block, and make everything else agree with them."""
        n = max(len(self._refs), len(self._pins), len(self._prefix))
        self._refs, self._pins = [refs.get(b, 0) for b in range(n)], [pins.get(b, 0) for b in range(n)]
        self._prefix += [None] * (n - len(self._prefix))
        self._by_key = {}
        for b, prefix in enumerate(self._prefix):
            if prefix is not None:
                self._by_key.setdefault(prefix.key, []).append(b)
        idle = [b for b in range(n) if not self._refs[b] and not self._pins[b]]
        kept = {b for b in idle if self._prefix[b] is not None}
        self._free = [b for b in reversed(idle) if b not in kept]
        self._cold = OrderedDict.fromkeys(b for b in self._cold if b in kept)
        warm = [b for b in self._warm if b in kept and b not in self._cold]
        self._warm = OrderedDict.fromkeys([*warm, *(b for b in idle if b in kept and b not in self._cold)])

    # -- prefix cache ------------------------------------------------------------------------------------------
    def publish(self, b: int, prefix: Prefix) -> None:
        """Make the full block b, which must be in use, findable. Blocks of equal content may exist side by side."""
        old = self._prefix[b]
        if old is not None:
            if old.key == prefix.key and old.same_tokens(prefix):
                return
            raise RuntimeError(f"block {b} is published with other tokens: full blocks are immutable")
        self._prefix[b] = prefix
        self._by_key.setdefault(prefix.key, []).append(b)

    def unpublish(self, b: int) -> None:
        """Forget what block b, which must be in use, holds: it is about to be overwritten."""
        if self._refs[b] == 0:
            raise RuntimeError(f"block {b} is not in use: it cannot be overwritten")
        self._forget(b)

    def prefix(self, b: int) -> Prefix | None:
        """What block b was published with; None while it is not findable."""
        return self._prefix[b]

    def find(self, prefix: Prefix) -> int | None:
        """A block that holds this prefix, not retained."""
        for b in self._by_key.get(prefix.key, ()):
            held = self._prefix[b]
            if held is not None and held.same_tokens(prefix):
                return b
        return None

    def lookup(self, prefix: Prefix) -> int | None:
        """A block that holds this prefix, with one more reference; counts hits and misses."""
        b = self.find(prefix)
        self.counters["miss" if b is None else "hit"] += 1
        if b is not None:
            self.retain(b)
        return b

    def _forget(self, b: int) -> None:
        prefix = self._prefix[b]
        if prefix is None:
            return
        self._prefix[b] = None
        holders = self._by_key[prefix.key]
        holders.remove(b)
        if not holders:
            del self._by_key[prefix.key]
