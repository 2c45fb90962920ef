"""Steps of few rows as CUDA graphs: captured once, started by one call in every later step.

A graph reads lengths, cells and block tables from arrays of the device, which every step fills anew, so nothing in it
is ever out of date; what it was captured with is its key: how many rows, room of the tables, where K and V lie. The
first step with a key runs kernel by kernel, which compiles what was not; the second one is captured.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.few_rows import Ready, run_layers
from polykv.fast.cuda.step_tables import HostTables, Shape, StepTables, host_tables
from polykv.fast.cuda.workspace import Workspace
from polykv.types import F32, Angles, Segments, Slots

# Graphs that a stack keeps; the one that was not used for longest goes first.
KEPT = 32


@dataclass(eq=False)
class Captured:
    """The arrays of steps with one key, and their graph once there is one."""

    tables: StepTables
    h: F32
    room: Workspace
    graph: Any = None


class Graphs:
    """Steps of one stack. counters: "eager" steps, "captured" graphs, "replayed" steps."""

    def __init__(self, layers: Sequence[Ready], shapes: Sequence[Shape]) -> None:
        self.layers, self.shapes = layers, shapes
        self.counters: Counter[str] = Counter()
        self._kept: OrderedDict[Any, Captured] = OrderedDict()

    def run(self, h: F32, angles: Sequence[Angles], segments: Sequence[Segments], slots: Sequence[Slots]) -> None:
        """All layers, h [R, E] in place."""
        host = host_tables(self.shapes, len(h), angles, segments, slots)
        key = host.rooms, tuple(a.interleaved for a in angles), h.shape[1], tuple(self._arenas())
        found, known = self._kept.get(key), key in self._kept
        if found is None:
            found = self._made(host, h.shape[1], angles, len(slots))
            self._kept[key] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        found.tables.send(host)
        rows = len(h)
        found.h[:rows] = h
        found.h[rows:] = 0
        if known and found.graph is None:
            found.graph = self._capture(found)
        if found.graph is None:
            run_layers(found.h, self.layers, found.tables, found.room)
            self.counters["eager"] += 1
        else:
            found.graph.launch(cupy().cuda.get_current_stream())
            self.counters["replayed"] += 1
        h[...] = found.h[:rows]

    def _arenas(self) -> list[tuple[int, ...]]:
        """Where K and V lie: arrays are replaced when a pool grows."""
        arrays = [a.fields["data"] for layer in self.layers for a in (layer.kv.k, layer.kv.v)]
        return [(a.data.ptr, a.shape[0]) for a in arrays]  # type: ignore[attr-defined]

    def _made(self, host: HostTables, width: int, angles: Sequence[Angles], groups: int) -> Captured:
        room = Workspace()
        tables = StepTables(self.shapes, host, angles, groups, room)
        return Captured(tables, cupy().zeros((host.rooms.rows, width), np.float32), room)

    def _capture(self, step: Captured) -> Any:
        """The launches of a step as a graph."""
        stream = cupy().cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                run_layers(step.h, self.layers, step.tables, step.room)
            finally:
                graph = stream.end_capture()
        self.counters["captured"] += 1
        return graph
