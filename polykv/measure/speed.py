"""How long types take to encode and to attend to, as ratios to float16 in the same run.

One decode row over `depth` cells of a layer is what a step waits for; types take turns, and of all turns the fastest
counts, because other work on the machine can only slow a run down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from polykv.config import CacheConfig
from polykv.measure.known import block_size
from polykv.measure.timing import seconds
from polykv.ops import LoadedOps
from polykv.types import F32, Codec, LayerKV, Segment, Segments, Slots

# Tokens that are encoded at a time, and turns of every type.
ROWS, TURNS = 64, 3


@dataclass(frozen=True)
class Shape:
    """One attention layer."""

    n_heads: int
    n_kv: int
    head_dim: int


@dataclass(frozen=True)
class Speed:
    """Of one pair of types: seconds to encode a token's K and V, and to attend with one row; and what the control took
    in the same run over what this took (above 1 = faster than the control)."""

    encode_s: float
    attend_s: float
    encode_ratio: float
    attend_ratio: float


def measure(
    ops: LoadedOps,
    pairs: dict[str, tuple[Codec, Codec]],
    control: str,
    shape: Shape,
    *,
    depth: int,
    budget: float,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Speed]:
    """Speed of every pair (K, V) by its name, against the one named `control`.

    budget: seconds per pair and task over all turns. Cells of centered keys are timed as if all were sealed, without
    the sealing. on_progress(done, total) counts turns of pairs.
    """
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, shape.n_heads, shape.head_dim), np.float32)
    k, v = rng.standard_normal((2, depth, shape.n_kv, shape.head_dim), np.float32)
    stores = {name: store(ops, *pair, k, v) for name, pair in pairs.items()}
    encode, attend = dict.fromkeys(stores, np.inf), dict.fromkeys(stores, np.inf)
    rows = min(ROWS, depth)

    def write(kv: LayerKV) -> None:
        slots = _slots(rows, kv.k.block_size)
        ops.kv_append(kv.k, k[:rows], slots)
        ops.kv_append(kv.v, v[:rows], slots)
        ops.wait()

    def read(kv: LayerKV, seen: Segments) -> None:
        ops.attend(q, seen, kv, scale=shape.head_dim**-0.5)
        ops.wait()

    for turn in range(TURNS):
        for i, (name, kv) in enumerate(stores.items()):
            seen = one_sequence(depth, [depth - 1], kv.k.block_size)
            encode[name] = min(encode[name], seconds(partial(write, kv), budget / TURNS) / rows)
            took = seconds(partial(read, kv, seen), budget / TURNS)
            attend[name] = min(attend[name], took)
            if on_progress:
                on_progress(turn * len(stores) + i + 1, TURNS * len(stores))
    e, a = encode[control], attend[control]
    return {name: Speed(encode[name], attend[name], e / encode[name], a / attend[name]) for name in pairs}


def store(ops: LoadedOps, k_type: Codec, v_type: Codec, k: F32, v: F32) -> LayerKV:
    """Keys and values [T, G, D] in fresh arenas, blocks in order."""
    (tokens, n_kv, dim), size = k.shape, block_size(k_type, ops)
    shape = -(-tokens // size), n_kv, dim, size
    k_cells, v_cells = ops.kv_alloc(k_type, *shape), ops.kv_alloc(v_type, *shape, values=True)
    ops.kv_append(k_cells, k, _slots(tokens, size))
    ops.kv_append(v_cells, v, _slots(tokens, size))
    return LayerKV(k_cells, v_cells)


def one_sequence(tokens: int, positions: range | list[int], size: int = CacheConfig.block_size) -> Segments:
    """Rows at these positions that see one sequence of so many tokens, in blocks of `size` as `store` lays them."""
    rows = np.arange(len(positions), dtype=np.int32)
    blocks = np.arange(-(-tokens // size), dtype=np.int32)
    return Segments.of([Segment(blocks, 0, tokens, rows)], np.array(positions, np.int32))


def _slots(n: int, size: int) -> Slots:
    t = np.arange(n, dtype=np.int32)
    return Slots(t // size, t % size)
