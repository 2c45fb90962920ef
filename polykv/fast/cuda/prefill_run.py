"""One layer's attention of many rows on the device: what its layers share, and the kernels.

step = step_of(segments, made, k, v, heads, window)
out, lse = run(step, made, q, k, v, scale=s, window=window, softcap=0.0)

In every round the codes that it reads are lifted to halves (`lift.py`; those of f16 are read where they are), then all
items of the round are multiplied; at the end partial results are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.lift import as_it_is, block_bytes, lift, room_of
from polykv.fast.cuda.prefill_config import Config
from polykv.fast.cuda.prefill_plan import Plan, plan
from polykv.types import F32, KVArena, Segments

LOG2E = 1.4426950408889634
JOIN_WARPS = 4


@dataclass(frozen=True, eq=False)
class Step:
    """A plan on the device, with what every layer of a step shares: tables of blocks, rows, and partial results.
    seen_from: the lowest position that is seen."""

    plan: Plan
    items: Any
    ranges: Any
    join: tuple[Any, Any, Any]
    blocks: Any
    lifted: Any
    table: Any
    rows: Any
    positions: Any
    sums: Any
    weights: Any
    seen_from: int


def step_of(segments: Segments, made: Config, k: KVArena, v: KVArena, heads: int, window: int) -> Step:
    """The plan of a step for layers of one shape and pair of types."""
    slots = max(1, device().processors * made.ctas // k.n_kv)
    place, room = made.queries // (heads // k.n_kv), room_of(k, v)
    found = plan(segments, window, place=place, block_size=k.block_size, room=room, slots=slots)
    return on_device(found, segments, made, k.n_kv)


def on_device(found: Plan, segments: Segments, made: Config, n_kv: int) -> Step:
    """A plan with its arrays, and memory for partial results."""
    n = found.parts * n_kv * made.queries
    return Step(
        found,
        asarray(found.items),
        asarray(found.ranges),
        (asarray(found.join.rows), asarray(found.join.ptr), asarray(found.join.slots)),
        asarray(segments.blocks),
        asarray(found.lifted.blocks),
        asarray(found.lifted.table),
        asarray(segments.rows),
        asarray(segments.positions),
        cupy().empty((n, made.dims), np.float32),
        cupy().empty((n, 2), np.float32),
        segments.first,
    )


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
    out: F32 | None = None,
) -> tuple[F32, F32]:
    """Queries [R, H, D'] in the space of the keys to (out [R, H, D'] in the space of the values, lse [R, H])."""
    rows, heads, dims = q.shape
    cp, group, found = cupy(), heads // k.n_kv, step.plan
    y = cp.empty((rows, heads, dims), np.float32) if out is None else out
    lse = cp.empty((rows, heads), np.float32)
    sides = [_Side(a, min(found.lifted.room, len(found.lifted.blocks))) for a in (k, v)]
    attend = kernel("prefill.cu", "prefill", **made.defines())
    for r, (first, last) in enumerate(zip(found.rounds, found.rounds[1:], strict=False)):
        blocks = step.lifted[r * found.lifted.room : (r + 1) * found.lifted.room]
        for side, values in zip(sides, (False, True), strict=True):
            side.fill(blocks, values)
        tables = (step.blocks if side.lifted is None else step.table for side in sides)
        arguments = (
            *(q, step.items[first:last], step.ranges, step.rows, step.positions),
            *(side.data for side in sides),
            *tables,
            *(np.int64(side.strides[0]) for side in sides),
            *(np.int64(side.strides[1]) for side in sides),
            *(k.block_size.bit_length() - 1, heads, group, scale * LOG2E, softcap, window, step.seen_from),
            *(y, lse, step.sums, step.weights),
        )
        launch(attend, (k.n_kv, last - first), (made.threads,), arguments, shared=made.shared)
    n = len(found.join.rows)
    arguments = (step.sums, step.weights, *step.join, n, found.place, made.queries, heads, group, y, lse)
    join = kernel("prefill_join.cu", "prefill_join", JOIN_DIMS=dims)
    launch(join, (-(-n * heads // JOIN_WARPS),), (32 * JOIN_WARPS,), arguments)
    return y, lse


class _Side:
    """Halves of K or V: the arena's own, or memory for those of a round. strides: of blocks, then of heads."""

    def __init__(self, arena: KVArena, room: int) -> None:
        self._arena = arena
        self.lifted: Any = None
        if as_it_is(arena):
            self.data = arena.fields["data"]
            self.strides = self.data.strides[:2]
        else:
            self.data = self.lifted = cupy().empty((arena.n_kv, room, block_bytes(arena)), np.uint8)
            self.strides = self.data.strides[1], self.data.strides[0]

    def fill(self, blocks: Any, values: bool) -> None:
        """Lift these blocks of the arena, if it is not f16."""
        if self.lifted is not None:
            lift(self.lifted, self._arena, blocks, values)
