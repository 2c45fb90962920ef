"""One layer's attention on the device: what its layers share, and the kernels.

step = step_of(segments, made, heads, n_kv, window)
out, lse = run(step, made, q, k, v, scale=s, window=window, softcap=0.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.attend_config import Config
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.kv import means_of
from polykv.fast.cuda.levels import levels
from polykv.fast.cuda.shared_plan import Shared, plans
from polykv.fast.cuda.shared_run import Places, SharedStep, run_shared
from polykv.types import F32, Codec, KVArena, Segments

LOG2E = 1.4426950408889634
MERGE_DIMS = 32
# Threads of a block that joins: a few queries have hundreds of partial results each, many queries have dozens.
MERGE_THREADS, FEW_QUERIES = (512, 128), 512


@dataclass(frozen=True, eq=False)
class Step:
    """A plan on the device, with what every layer of a step shares: the table of blocks, rows, and partial results.
    seen_from: the lowest position that is seen (`Segments.first`)."""

    items: Any
    ptr: Any
    parts: Any
    blocks: Any
    rows: Any
    positions: Any
    sums: Any
    weights: Any
    seen_from: int = 0
    # Segments that many queries share, where there are any.
    shared: SharedStep | None = None


def step_of(segments: Segments, made: Config, heads: int, n_kv: int, window: int, shared: Shared | None = None) -> Step:
    """The plan of a step for layers of one shape."""
    found = plans(segments, made, shared, heads, n_kv, window)
    cp, first = cupy(), len(found.few.items) * n_kv * found.few.queries
    n, of_shared = first, None
    if shared is not None and found.shared is not None:
        n += len(found.shared.items) * n_kv * found.shared.queries
        of_shared = SharedStep(shared.made, asarray(found.shared.items), first)
    tables = (found.few.items, *found.lists(first), segments.blocks, segments.rows, segments.positions)
    items, ptr, parts, blocks, rows, positions = (asarray(a) for a in tables)
    sums, weights = cp.empty((n, made.width * made.slices), np.float32), cp.empty((n, 2), np.float32)
    return Step(items, ptr, parts, blocks, rows, positions, sums, weights, segments.first, of_shared)


@cache
def _levels(codec: Codec, head_dim: int, _: int) -> tuple[Any, float]:
    words, unit = levels(codec, head_dim)
    return asarray(words), unit


def run(
    step: Step,
    made: Config,
    q: F32,
    k: KVArena,
    v: KVArena,
    *,
    scale: float,
    window: int,
    softcap: float,
    out: tuple[F32, F32] | None = None,
) -> tuple[F32, F32]:
    """Queries [R, H, D'] in the space of the keys to (out [R, H, D'] in the space of the values, lse [R, H])."""
    run_partly(step, made, q, k, v, scale=scale, window=window, softcap=softcap)
    rows, heads, dims = q.shape
    cp = cupy()
    y, lse = out or (cp.empty((rows, heads, dims), np.float32), cp.empty((rows, heads), np.float32))
    threads = MERGE_THREADS[rows * heads >= FEW_QUERIES]
    merge = kernel("attend_merge.cu", "attend_merge", MERGE_DIMS=dims, MERGE_THREADS=threads)
    arguments = (step.sums, step.weights, step.ptr, step.parts, y, lse)
    launch(merge, (rows * heads, dims // MERGE_DIMS), (threads,), arguments)
    return y, lse


def run_partly(
    step: Step, made: Config, q: F32, k: KVArena, v: KVArena, *, scale: float, window: int, softcap: float
) -> None:
    """Partial results of queries [R, H, D'] in the space of the keys: `sums` and `weights` of the step."""
    heads, n_kv, where = q.shape[1], k.n_kv, cupy().cuda.runtime.getDevice()
    (k_levels, k_unit), (v_levels, v_unit) = _levels(k.codec, k.head_dim, where), _levels(v.codec, v.head_dim, where)
    # [blocks, heads, bytes], in whatever order they lie.
    data = k.fields["data"], v.fields["data"]
    means, mean_block, mean_head = means_of(k)
    turns = k.block_size // made.turn
    arguments = (
        *(q, step.items, step.rows, step.positions, step.blocks, *data),
        *(np.uint32(d.strides[0]) for d in data),
        *(np.int64(d.strides[1]) for d in data),
        *(turns.bit_length() - 1, heads, heads // n_kv, k_levels, v_levels),
        *(scale * LOG2E * k_unit, v_unit, softcap, window, step.seen_from),
        *(means, np.uint32(mean_block), mean_head, scale * LOG2E, step.sums, step.weights),
    )
    if step.shared is not None:
        places = Places(step.rows, step.positions, step.blocks, step.sums, step.weights, step.seen_from)
        run_shared(step.shared, places, q, k, v, scale=scale, window=window, softcap=softcap)
    launch(
        kernel(f"{made.file}.cu", made.file, **made.defines()),
        (len(step.items), n_kv, 1),
        (32 * made.warps,),
        arguments,
        shared=made.shared,
    )
