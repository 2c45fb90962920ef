"""Steps of few rows as CUDA graphs: captured once, started by one call in every later step.

A graph reads lengths, cells and block tables from arrays of the device, which every step fills anew, so nothing in it
is ever out of date; what it was captured with is its key: how many rows, room of the tables. All go when K or V, or
exact cells of them, lie elsewhere, or the memory that they share. The first step with a key runs kernel by kernel,
which compiles what was not; the second one is captured.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.few_rows import MOST, Ready, run_layers
from polykv.fast.cuda.step_tables import HostTables, Shape, StepTables, host_tables
from polykv.fast.cuda.workspace import Workspace
from polykv.types import Angles, Segments, Slots

# Graphs that a stack keeps; the one that was not used for longest goes first.
KEPT = 32


@dataclass(eq=False)
class Captured:
    """The tables of steps with one key, and their graph once there is one; h: their rows, in the workspace. ran:
    whether a step came to its end, so that all that its kernels need is compiled and allocated: nothing else may happen
    while they are captured."""

    tables: StepTables
    h: Any
    ran: bool = False
    graph: Any = None


def _gone() -> None:
    """Like a reference to an array that is no more."""


class Graphs:
    """Steps of one stack. counters: "eager" steps, "captured" graphs, "replayed" steps; "lifted" items, of segments
    that are lifted for all of their rows, in all steps and shapes.

    Steps follow each other on a stream, so all graphs share one workspace.
    """

    def __init__(self, layers: Sequence[Ready], shapes: Sequence[Shape]) -> None:
        self.layers, self.shapes = layers, shapes
        self.counters: Counter[str] = Counter()
        kvs = [kv for layer in layers for kv in (layer.kv, layer.kv.exact) if kv is not None]
        self._arenas = [a for kv in kvs for a in (kv.k, kv.v)]
        self._data: list[Any] = [_gone] * len(self._arenas)
        self._kept: OrderedDict[Any, Captured] = OrderedDict()
        self._room, self._moved = Workspace(MOST), 0

    @property
    def nbytes(self) -> int:
        """Bytes of the device: the workspace, and the tables of every key."""
        return self._room.nbytes + sum(step.tables.nbytes for step in self._kept.values())

    def run(self, h: Any, angles: Sequence[Angles], segments: Sequence[Segments], slots: Sequence[Slots]) -> None:
        """All layers, h [R, E] in place."""
        host = host_tables(self.shapes, len(h), angles, segments, slots)
        if host.lifted:
            self.counters["lifted"] += host.lifted
        self._forget_moved()
        self._forget_stale()
        key = host.rooms, tuple(a.interleaved for a in angles), h.shape[1]
        found = self._kept.get(key)
        if found is None:
            found = self._made(host, h.shape[1], angles, len(slots))
            # Its tables may have needed more room for partial results than there was.
            self._forget_stale()
            self._kept[key] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        found.tables.send(host)
        rows, stream = len(h), cupy().cuda.get_current_stream()
        if rows < len(found.h):
            found.h[rows:] = 0
        # Copies of memory: as operations on arrays they would take the host four times as long.
        found.h.data.copy_from_device_async(h.data, h.nbytes, stream)
        if found.ran and found.graph is None:
            found.graph = self._capture(found)
        if found.graph is None:
            run_layers(found.h, self.layers, found.tables, self._room)
            self._forget_stale()
            self._kept[key], found.ran = found, True
            self.counters["eager"] += 1
        else:
            found.graph.launch(stream)
            self.counters["replayed"] += 1
        h.data.copy_from_device_async(found.h.data, h.nbytes, stream)

    def _forget_moved(self) -> None:
        """Forget all graphs when K or V of a layer lie elsewhere: arrays are replaced when a pool grows."""
        for i, arena in enumerate(self._arenas):
            data = arena.fields["data"]
            if data is not self._data[i]():
                # In this order: an interruption in between costs graphs, not their truth.
                self._kept.clear()
                self._data[i] = ref(data)

    def _forget_stale(self) -> None:
        """Forget all graphs when an array of the workspace was replaced by a larger one."""
        if self._moved != self._room.moved:
            self._kept.clear()
            self._moved = self._room.moved

    def _made(self, host: HostTables, width: int, angles: Sequence[Angles], groups: int) -> Captured:
        tables = StepTables(self.shapes, host, angles, groups, self._room)
        return Captured(tables, self._room.take("h", (host.rooms.rows, width)))

    def _capture(self, step: Captured) -> Any:
        """The launches of a step as a graph."""
        stream = cupy().cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                run_layers(step.h, self.layers, step.tables, self._room)
            finally:
                graph = stream.end_capture()
        self.counters["captured"] += 1
        return graph
