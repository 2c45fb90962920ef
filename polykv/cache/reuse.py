"""The longest prefix of a prompt that the cache still holds, for all cache groups at once.

A full-attention group needs every block from the start. A sliding group only needs the blocks that the next query
sees, so blocks that slid out of the window long ago may be gone without harm.
"""

from __future__ import annotations

from polykv.cache.blocks import Prefix
from polykv.cache.pool import KVPool


def find_prefix(pool: KVPool, tokens: list[int]) -> list[Prefix]:
    """Prefixes of the leading blocks of `tokens` that can be reused together; nothing is retained."""
    size = pool.block_size
    full = [m for m, g in zip(pool.managers, pool.groups, strict=True) if not g.window]
    sliding = [(m, g) for m, g in zip(pool.managers, pool.groups, strict=True) if g.window]
    chain: list[Prefix] = []
    for i in range(len(tokens) // size):
        prefix = Prefix(chain[-1] if chain else None, tuple(tokens[i * size : (i + 1) * size]), pool.seed)
        held = [m.find(prefix) for m in full]
        if None in held:
            break
        # Continue with the node that the cache holds: later comparisons then end at once.
        known = full[0].prefix(held[0]) if held and held[0] is not None else None
        chain.append(known or prefix)

    n = len(chain)
    while n:
        # Windows of shorter lengths begin earlier, so all lengths beyond the first hole have it in view.
        holes = [i for m, g in sliding for i in range(g.first_cell(n * size) // size, n) if m.find(chain[i]) is None]
        if not holes:
            break
        n = min(holes)
    return chain[:n]
