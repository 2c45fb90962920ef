"""Memory of arenas: head after head, in large pages.

Attention reads one kv head of a chunk of keys at a time. Its records lie one behind the other in the order of block
ids, [n_kv, N, RECORD], so that what it reads is a stream, which the processor fetches ahead on its own; records of
other heads in between would break it up (docs/PERFORMANCE.md). `fields["data"]` shows them with the block id first, as
in every arena; kernels take them as they lie (`heads`).

A step reads the cells of all layers, which in pages of 4 KiB costs a walk through the page table every few records.
Arrays of one layer seldom fill pages of 2 MiB. So arrays that grow together are parts of larger ones (large_pages.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polykv.fast.batches import batches
from polykv.fast.cpu.kv_layout import RECORD, CpuArena, layout
from polykv.fast.cpu.large_pages import zeroed
from polykv.types import U8, Codec, KVArena

# Bytes from which no more arenas join. A growth holds one old array of about that size beside all new ones; and what
# an array has beyond whole large pages, half of one on average, lies in small ones: a tenth of it.
ENOUGH = 10 << 20


def own(arena: KVArena) -> CpuArena:
    """The arena as this backend made it; TypeError for one of another backend."""
    if not isinstance(arena, CpuArena):
        raise TypeError("this arena was allocated by another backend")
    return arena


def kv_alloc(
    codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int, *, values: bool = False
) -> KVArena:
    """Zeroed storage for n_blocks blocks (a `CpuArena`). K and V lie alike."""
    geom, table = layout(codec, head_dim, block_size)
    shape = n_kv, n_blocks, int(geom[RECORD])
    data = np.zeros(shape, np.uint8).transpose(1, 0, 2)
    return CpuArena(codec, n_kv, head_dim, block_size, {"data": data}, geom, table)


def kv_grow(arenas: Sequence[KVArena], n_blocks: int) -> None:
    """Have n_blocks blocks in every arena, with what they hold; new ones are zero."""
    for batch in batches(map(own, arenas), lambda a: _size(a, n_blocks), ENOUGH):
        memory, at = zeroed(sum(_size(a, n_blocks) for a in batch)), 0
        for arena in batch:
            part = memory[at : at + _size(arena, n_blocks)]
            data = part.reshape(arena.n_kv, n_blocks, int(arena.geom[RECORD]))
            kept = min(n_blocks, arena.n_blocks)
            data[:, :kept] = heads(arena)[:, :kept]
            # The arena object stays, only its array is replaced: whoever holds it sees the larger one.
            arena.fields["data"] = data.transpose(1, 0, 2)
            at += len(part)


def heads(arena: CpuArena) -> U8:
    """The records [n_kv, N, RECORD], C-contiguous."""
    found: U8 = arena.fields["data"].transpose(1, 0, 2)  # type: ignore[assignment]
    return found


def _size(arena: CpuArena, n_blocks: int) -> int:
    """Bytes of so many blocks."""
    return arena.n_kv * n_blocks * int(arena.geom[RECORD])
