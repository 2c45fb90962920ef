"""The forward pass: a `ModelConfig` and its weights, interpreted layer by layer.

    h = embed(ids);  for each layer: h += attention(h), h += mlp(h);  logits = head(h[rows]), or greedy(h[rows])

Nothing here knows an architecture by name: what differs between models is in the configuration (windows, rope, scales)
and in which weights are present (norms). Everything that stays the same from step to step (weights, arenas, which cache
group and which rope a layer uses) is resolved once, at construction, so a step costs three calls.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from polykv.cache.pool import KVPool
from polykv.config import RopeConfig
from polykv.model.loader import Model
from polykv.model.rope import angles
from polykv.ops import Ops
from polykv.types import F32, I32, Activations, Angles, Greedy, Layer, Segments, Slots, Stack

# Sees (layer, h [R, E], angles of the layer's rope) before each layer; h is only valid during the call.
Observer = Callable[[int, F32, Angles], None]


class Transformer:
    """A model bound to a backend and to the arenas of one pool."""

    def __init__(
        self, ops: Ops, model: Model, pool: KVPool, activations: Activations, observer: Observer | None = None
    ) -> None:
        self.ops, self.config, self.activations = ops, model.config, activations
        self._embedding, self._head, self._whole = model.embedding, model.head, replace(model.head, screen=None)
        self._pool, self._observer = pool, observer
        ropes: dict[str, int] = {}
        self.ropes: list[RopeConfig] = []
        layers: list[Layer] = []
        for i, layer in enumerate(model.config.layers):
            if layer.rope.identity() not in ropes:
                ropes[layer.rope.identity()] = len(self.ropes)
                self.ropes.append(layer.rope)
            rope = ropes[layer.rope.identity()]
            layers.append(Layer(model.attention[i], model.mlp[i], pool.layer(i), pool.group_of(i), rope))
        self.stack = Stack(tuple(layers))
        # Observers see rows once, and none that are forgotten.
        self.runs_ahead = ops.runs_ahead() and observer is None
        self._equalize()

    def _equalize(self) -> None:
        """Take over the calibration that the pool has now; it may get one until its first token."""
        self._calibration = self._pool.calibration
        equalizers = self._pool.equalizers
        self.stack = Stack(
            tuple(
                replace(layer, attention=replace(layer.attention, equalizer=e))
                for layer, e in zip(self.stack.layers, equalizers, strict=True)
            )
        )
        # Layers that scale keys, and those that scale queries.
        self.k_scaled = sum(e.k is not None for e in equalizers)
        self.q_scaled = sum(e.q is not None for e in equalizers)

    def angles(self, positions: I32) -> list[Angles]:
        """Rope angles of the rows at `positions` [R], one entry per distinct rope of the model."""
        return [angles(rope, positions) for rope in self.ropes]

    def hidden(self, ids: I32, positions: I32, slots: Seq[Slots], segments: Seq[Segments], head_rows: I32) -> F32:
        """h [len(head_rows), E] of the rows `head_rows`, after writing K and V of all rows ids [R] to the cache.

        slots and segments: one entry per cache group.
        """
        if self._pool.calibration is not self._calibration:
            self._equalize()
        ops, act = self.ops, self.activations
        ropes = self.angles(positions)
        h = ops.embed(self._embedding, ids, self.config.embed_scale)
        if self._observer is None:
            ops.layers(h, self.stack, ropes, segments, slots, activations=act)
        else:
            for i, layer in enumerate(self.stack.layers):
                self._observer(i, h, ropes[layer.rope])
                ops.layers(h, Stack((layer,)), ropes, segments, slots, activations=act)
        return h if len(head_rows) == len(h) else h[head_rows]

    def clear(self, slots: Seq[Slots]) -> None:
        """Write zeros to the cells of a step that gave NaN.

        Kernels that multiply whole tiles meet cells that no row sees with weights of 0, and 0 NaN is NaN: the next
        owner of a block would pay for it.
        """
        for layer in self.stack.layers:
            new, cells = layer.kv.exact or layer.kv, slots[layer.group]
            for arena in (new.k, new.v):
                self.ops.kv_append(arena, np.zeros((len(cells.blocks), arena.n_kv, arena.head_dim), np.float32), cells)

    def logits(self, h: F32, out: F32 | None = None) -> F32:
        """Logits [R, V] of hidden rows."""
        if len(h) == 0:
            return np.zeros((0, self.config.vocab), np.float32)
        return self.ops.head(h, self._head, activations=self.activations, out=out)

    def greedy(self, h: F32, room: F32 | None = None, *, screen: bool = True) -> Greedy:
        """The most likely tokens of hidden rows; room: see `Ops.greedy`. screen: use that of the head, if any."""
        if len(h) == 0:
            return Greedy(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))
        return self.ops.greedy(h, self._head if screen else self._whole, activations=self.activations, room=room)
