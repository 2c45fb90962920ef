"""What the kernels of a step read beside weights and K/V, on the device in one copy: angles, cells, plans of attention.

Layers whose attention is cut in the same way share a plan. Arrays have room to spare and keep their addresses, so that
a captured graph goes on reading them, in later steps, as long as they have room enough (`Rooms` says whether).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda import follow
from polykv.fast.cuda.attend_config import Config, config
from polykv.fast.cuda.attend_plan import ENTRIES, HEADS, long, sets_of
from polykv.fast.cuda.attend_run import Step
from polykv.fast.cuda.device import device
from polykv.fast.cuda.forms import WARPS
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.levels import same_table
from polykv.fast.cuda.shared_config import QUERIES, SharedConfig
from polykv.fast.cuda.shared_plan import Plans, Shared, plans, shared_of
from polykv.fast.cuda.shared_run import SharedStep
from polykv.fast.cuda.upload import Upload
from polykv.fast.cuda.workspace import Workspace
from polykv.types import Angles, Codec, Layer, Seals, Segments, Slots

Host = npt.NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """What decides how a layer's attention over one kind of cells is cut, and compiled. group: of the cache; exact:
    whether it is that over the group's exact cells; staged: whether the group has any."""

    group: int
    k: Codec
    v: Codec
    heads: int
    n_kv: int
    head_dim: int
    window: int
    capped: bool
    exact: bool = False
    staged: bool = False

    @staticmethod
    def of(layer: Layer, exact: bool = False) -> Shape:
        w, kv = layer.attention, layer.kv.exact if exact and layer.kv.exact else layer.kv
        codecs = kv.k.codec, kv.v.codec
        sizes, staged = (w.n_heads, w.n_kv, w.head_dim, w.window), layer.kv.exact is not None
        return Shape(layer.group, *codecs, *sizes, w.softcap > 0, exact, staged)

    def reads(self, segments: Sequence[Segments]) -> Segments:
        """Its own segments, of those of all groups."""
        found = segments[self.group]
        return found.exact if self.exact and found.exact is not None else found

    def shared(self, segments: Segments) -> Shared | None:
        """Which segments are lifted for all of their rows, and how."""
        return shared_of(segments, self.k, self.v, self.heads, self.n_kv, self.head_dim, self.capped)

    def config(self, segments: Segments, shared: Shared | None) -> Config:
        """How the kernel for the other ones is compiled."""
        but = None if shared is None else shared.which
        kinds, sets = (kind_of(self.k), kind_of(self.v)), sets_of(segments, self.heads // self.n_kv, but)
        one_table, limit = same_table(self.k, self.v), device().shared
        made = config(
            *kinds,
            self.head_dim,
            sets,
            softcap=self.capped,
            limit=limit,
            one_table=one_table,
            long=long(segments, but),
            centered=self.k.centered,
            # Units are coded between, queries turned or shared cells attended to: then the kernel before is another.
            early=follow.works() and not self.staged and shared is None,
        )
        return replace(made, beside=shared is not None)


def shapes_of(layer: Layer) -> list[Shape]:
    """Over codes, and over exact cells, if there are any."""
    return [Shape.of(layer)] if layer.kv.exact is None else [Shape.of(layer), Shape.of(layer, exact=True)]


def spare(n: int) -> int:
    """Room for n values: a power of two, so that it seldom has to grow."""
    return 1 << max(4, (n - 1).bit_length())


@dataclass(frozen=True)
class Rooms:
    """rows: of the step, padded. rooms: of the arrays, in their order. items: of every shape's plan, padded, those of
    segments that are lifted behind the others. configs, shared: how kernels are compiled. seals: units that every
    group's rows complete, padded; seen_from: the first coded cells of every shape that are seen. What has equal `Rooms`
    can use the same graph."""

    rows: int
    rooms: tuple[int, ...]
    items: tuple[tuple[int, int], ...]
    configs: tuple[Config, ...]
    shared: tuple[SharedConfig | None, ...]
    seals: tuple[int, ...]
    seen_from: tuple[int, ...]


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
    reads = [s.reads(segments) for s in shapes]
    room, shared = padded(rows), [s.shared(r) for s, r in zip(shapes, reads, strict=True)]
    configs = [s.config(r, lifted) for s, r, lifted in zip(shapes, reads, shared, strict=True)]
    found = [_plans(*each) for each in zip(shapes, configs, shared, reads, strict=True)]
    staged, seals = _staged(shapes), []
    arrays: list[Host] = []
    for a in angles:
        arrays += [a.cos, a.sin]
    for i, (cells, g) in enumerate(zip(slots, segments, strict=True)):
        # Rows that a graph has too many write nowhere.
        arrays += [_filled(cells.blocks, room, -1), _filled(cells.offsets, room, 0)]
        arrays += [g.blocks, g.rows, _filled(g.positions, room, 0)]
        if i in staged:
            of_exact, n = _exact_arrays(cells, g)
            arrays += of_exact
            seals.append(n)
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
    seen_from = tuple(r.first for r in reads)
    return HostTables(arrays, Rooms(room, rooms, tuple(counts), tuple(configs), made, tuple(seals), seen_from), found)


_NONE = np.zeros((0, ENTRIES), np.int32)


def _padded(items: Host) -> Host:
    """Items of a plan, a multiple of 16; those too many have no cells, and none of their one head's rows."""
    padded = np.zeros((-(-max(len(items), 1) // 16) * 16, ENTRIES), np.int32)
    padded[:, HEADS] = 1
    padded[: len(items)] = items
    return padded


def _staged(shapes: Sequence[Shape]) -> set[int]:
    """Groups with exact cells."""
    return {s.group for s in shapes if s.exact}


def _exact_arrays(cells: Slots, g: Segments) -> tuple[list[Host], int]:
    """What the exact cells of a group need beside the codes: blocks and rows, and units that are complete; and the room
    of these."""
    assert g.exact is not None
    read: list[Host] = [g.exact.blocks, g.exact.rows]
    found = cells.seals
    if found is None or not len(found.coded):
        return [*read, *[np.zeros(0, np.int32)] * 3], 0
    n = 1 << (len(found.coded) - 1).bit_length()
    # Units that a graph has too many are not coded.
    return [*read, found.exact.reshape(-1), _filled(found.coded, n, -1), _filled(found.sinks, n, 0)], n


def _filled(x: Host, n: int, value: int) -> Host:
    """x with so many entries; the host is what a step waits for, so nothing is done where there is nothing to do."""
    return x if len(x) == n else np.concatenate([x, np.full(n - len(x), value, np.int32)])


def _plans(s: Shape, made: Config, shared: Shared | None, segments: Segments) -> Plans:
    processors = device().processors
    slots, busy = processors * made.ctas, 2 * -(-len(segments.positions) * s.n_kv // WARPS)
    if made.early and 16 * busy <= processors:
        # Meanwhile so many multiprocessors look for paths and have no room for another block.
        slots -= busy
    return plans(segments, made, shared, s.heads, s.n_kv, s.window, slots)


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
        # By group and whether it is that of exact cells.
        tables: dict[tuple[int, bool], tuple[Any, Any, Any]] = {}
        staged, seals = _staged(shapes), iter(host.rooms.seals)
        for i in range(n_groups):
            cells, positions, units = (take(at, (rows,)), take(at + 1, (rows,))), take(at + 4, (rows,)), None
            tables[i, False] = take(at + 2, (1,)), take(at + 3, (1,)), positions
            at += 5
            if i in staged:
                tables[i, True] = take(at, (1,)), take(at + 1, (1,)), positions
                n = next(seals)
                # A block of exact cells is a unit too.
                units = Seals(take(at + 2, (n, 1)), take(at + 3, (n,)), take(at + 4, (n,))) if n else None
                at += 5
            self.slots.append(Slots(*cells, units))
        self.steps: list[Step] = []
        made = list(zip(shapes, host.rooms.configs, host.rooms.items, host.plans, host.rooms.shared, strict=True))
        firsts = [n * s.n_kv * p.few.queries for s, _, (n, _), p, _ in made]
        counts = [
            (first + more * s.n_kv * QUERIES, few.width * few.slices)
            for first, (s, few, (_, more), _, _) in zip(firsts, made, strict=True)
        ]
        # The largest first: layers of all shapes write their partial results to the same place.
        for count in sorted(counts, key=prod, reverse=True):
            room.take("sums", count)
        for (s, _, (n, more), _, lifted), count, first, seen_from in zip(
            made, counts, firsts, host.rooms.seen_from, strict=True
        ):
            items, ptr, parts = take(at, (n, ENTRIES)), take(at + 1, (rows * s.heads + 1,)), take(at + 2, (1,))
            shared = None if lifted is None else SharedStep(lifted, take(at + 3, (more, ENTRIES)), first)
            at += 4
            sums = room.take("sums", count)
            blocks, of_rows, positions = tables[s.group, s.exact]
            weights = room.take("weights", (max(counts)[0], 2))
            self.steps.append(Step(items, ptr, parts, blocks, of_rows, positions, sums, weights, seen_from, shared))

    @property
    def nbytes(self) -> int:
        """Bytes of the tables on the device."""
        return self._upload.nbytes

    def send(self, host: HostTables) -> None:
        """The tables of a step that has the same rooms."""
        self._upload.send(host.arrays)
