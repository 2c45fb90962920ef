"""What the kernels of a step read beside weights and K/V, on the device in one copy: angles, cells, plans of attention.

Layers whose attention is cut in the same way share a plan. Arrays have room to spare and keep their addresses, so that
a captured graph goes on reading them, in later steps, as long as they have room enough (`Rooms` says whether).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.attend_config import Config, config
from polykv.fast.cuda.attend_plan import ENTRIES, HEADS, long, sets_of
from polykv.fast.cuda.attend_run import Step
from polykv.fast.cuda.device import device
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.levels import same_table
from polykv.fast.cuda.shared_config import QUERIES, SharedConfig
from polykv.fast.cuda.shared_plan import Plans, Shared, plans, shared_of
from polykv.fast.cuda.shared_run import SharedStep
from polykv.fast.cuda.upload import Upload
from polykv.fast.cuda.workspace import Workspace
from polykv.types import Angles, Codec, Layer, Segments, Slots

Host = npt.NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """What decides how a layer's attention is cut, and compiled. group: of the cache."""

    group: int
    k: Codec
    v: Codec
    heads: int
    n_kv: int
    head_dim: int
    window: int
    capped: bool

    @staticmethod
    def of(layer: Layer) -> Shape:
        w, kv = layer.attention, layer.kv
        return Shape(layer.group, kv.k.codec, kv.v.codec, w.n_heads, w.n_kv, w.head_dim, w.window, w.softcap > 0)

    def shared(self, segments: Segments) -> Shared | None:
        """Which segments are lifted for all of their rows, and how."""
        return shared_of(segments, self.k, self.v, self.heads, self.n_kv, self.head_dim, self.capped)

    def config(self, segments: Segments, shared: Shared | None) -> Config:
        """How the kernel for the other ones is compiled."""
        but = None if shared is None else shared.which
        kinds, sets = (kind_of(self.k), kind_of(self.v)), sets_of(segments, self.heads // self.n_kv, but)
        one_table, limit, many = same_table(self.k, self.v), device().shared, long(segments, but)
        return config(*kinds, self.head_dim, sets, softcap=self.capped, limit=limit, one_table=one_table, long=many)


def spare(n: int) -> int:
    """Room for n values: a power of two, so that it seldom has to grow."""
    return 1 << max(4, (n - 1).bit_length())


@dataclass(frozen=True)
class Rooms:
    """rows: of the step, padded. rooms: of the arrays, in their order. items: of every shape's plan, padded, those of
    segments that are lifted behind the others. configs, shared: how kernels are compiled. What has equal `Rooms` can
    use the same graph."""

    rows: int
    rooms: tuple[int, ...]
    items: tuple[tuple[int, int], ...]
    configs: tuple[Config, ...]
    shared: tuple[SharedConfig | None, ...]


@dataclass(frozen=True, eq=False)
class HostTables:
    """The arrays of a step on the host, and the rooms they need."""

    arrays: list[Host]
    rooms: Rooms
    plans: list[Plans]

    @property
    def lifted(self) -> int:
        """Items of segments that are lifted for all of their rows, of all shapes."""
        return sum(len(p.shared.items) for p in self.plans if p.shared is not None)


def padded(rows: int) -> int:
    """Rows of a graph that serves so many: few enough different ones, few enough wasted."""
    return rows if rows <= 4 else -(-rows // 4) * 4 if rows <= 16 else -(-rows // 8) * 8


def host_tables(
    shapes: Sequence[Shape], rows: int, angles: Sequence[Angles], segments: Sequence[Segments], slots: Sequence[Slots]
) -> HostTables:
    """Plan a step of `rows` rows."""
    room, shared = padded(rows), [s.shared(segments[s.group]) for s in shapes]
    configs = [s.config(segments[s.group], lifted) for s, lifted in zip(shapes, shared, strict=True)]
    found = [
        plans(segments[s.group], made, lifted, s.heads, s.n_kv, s.window)
        for s, made, lifted in zip(shapes, configs, shared, strict=True)
    ]
    arrays: list[Host] = []
    for a in angles:
        arrays += [a.cos, a.sin]
    for cells, g in zip(slots, segments, strict=True):
        # Rows that a graph has too many write nowhere.
        arrays += [_filled(cells.blocks, room, -1), _filled(cells.offsets, room, 0)]
        arrays += [g.blocks, g.rows, _filled(g.positions, room, 0)]
    counts = []
    for s, p in zip(shapes, found, strict=True):
        items, lifted = _padded(p.few.items), _padded(p.shared.items) if p.shared is not None else _NONE
        ptr, parts = p.lists(len(items) * s.n_kv * p.few.queries)
        # Rows that a graph has too many have no parts.
        arrays += [items, _filled(ptr, room * s.heads + 1, ptr[-1]), parts, lifted]
        counts.append((len(items), len(lifted)))
    # Rows that a graph has too many read some angles, whatever lies there, but no others' room.
    turned = [room * a.cos.shape[1] for a in angles for _ in range(2)]
    rooms = tuple(map(spare, [*turned, *(a.size for a in arrays[len(turned) :])]))
    made = tuple(None if x is None else x.made for x in shared)
    return HostTables(arrays, Rooms(room, rooms, tuple(counts), tuple(configs), made), found)


_NONE = np.zeros((0, ENTRIES), np.int32)


def _padded(items: Host) -> Host:
    """Items of a plan, a multiple of 16; those too many have no cells, and none of their one head's rows."""
    padded = np.zeros((-(-max(len(items), 1) // 16) * 16, ENTRIES), np.int32)
    padded[:, HEADS] = 1
    padded[: len(items)] = items
    return padded


def _filled(x: Host, n: int, value: int) -> Host:
    """x with so many entries; the host is what a step waits for, so nothing is done where there is nothing to do."""
    return x if len(x) == n else np.concatenate([x, np.full(n - len(x), value, np.int32)])


class StepTables:
    """Places on the device for the tables of steps with the same `Rooms`."""

    def __init__(
        self, shapes: Sequence[Shape], host: HostTables, angles: Sequence[Angles], n_groups: int, room: Workspace
    ) -> None:
        self.rooms, self._upload = host.rooms, Upload(host.rooms.rooms)
        at, rows, take = 0, host.rooms.rows, self._upload.array
        self.angles: list[Angles] = []
        for a in angles:
            shape = rows, a.cos.shape[1]
            self.angles.append(Angles(take(at, shape, np.float32), take(at + 1, shape, np.float32), a.interleaved))
            at += 2
        self.slots: list[Slots] = []
        tables: list[tuple[Any, Any, Any]] = []
        for _ in range(n_groups):
            self.slots.append(Slots(take(at, (rows,)), take(at + 1, (rows,))))
            tables.append((take(at + 2, (1,)), take(at + 3, (1,)), take(at + 4, (rows,))))
            at += 5
        self.steps: list[Step] = []
        made = zip(shapes, host.rooms.configs, host.rooms.items, host.plans, host.rooms.shared, strict=True)
        for s, few, (n, more), p, lifted in made:
            items, ptr, parts = take(at, (n, ENTRIES)), take(at + 1, (rows * s.heads + 1,)), take(at + 2, (1,))
            first = count = n * s.n_kv * p.few.queries
            shared = None
            if lifted is not None:
                count += more * s.n_kv * QUERIES
                shared = SharedStep(lifted, take(at + 3, (more, ENTRIES)), first)
            at += 4
            sums = room.take("sums", (count, few.width * few.slices))
            blocks, of_rows, positions = tables[s.group]
            weights = room.take("weights", (count, 2))
            self.steps.append(Step(items, ptr, parts, blocks, of_rows, positions, sums, weights, shared))

    def send(self, host: HostTables) -> None:
        """The tables of a step that has the same rooms."""
        self._upload.send(host.arrays)
