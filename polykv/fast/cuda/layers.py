"""attention_block and layers (twins of `polykv.ref.composites`).

    few rows, int8       kernels of few_rows.py, as one graph where a stack's layers are all like that (graphs.py)
    otherwise            compositions of the operations

Weights, angles and cells may be of the host: they are taken to the device, weights once. Segments are always of the
host, where attention is planned. h is of the device, and changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from polykv.fast.cuda.arrays import check
from polykv.fast.cuda.attend import attend_codes, merged, out_of, space_of
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.few_rows import MOST, Ready
from polykv.fast.cuda.glu import glu_columns
from polykv.fast.cuda.graphs import Graphs
from polykv.fast.cuda.kv_seal import kv_seal
from polykv.fast.cuda.kv_write import KeySteps, New, Queries, write_both
from polykv.fast.cuda.layout import slices_of
from polykv.fast.cuda.linear import linear
from polykv.fast.cuda.norm import rms_norm
from polykv.fast.cuda.placed import Attention, Mlp, Products, attention_of, mlp_of, vector
from polykv.fast.cuda.step_tables import Shape, shapes_of
from polykv.types import (
    F32,
    Activations,
    Angles,
    AttentionWeights,
    Layer,
    LayerKV,
    MlpWeights,
    Seals,
    Segments,
    Slots,
    Stack,
)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A stack on the device. shapes: ways in which attention is cut, each once. packed: few rows take the graph."""

    layers: tuple[Ready, ...]
    shapes: tuple[Shape, ...]
    packed: bool
    graphs: Graphs


# A memo, gone with the stack.
_PREPARED: WeakKeyDictionary[Stack, Prepared] = WeakKeyDictionary()


def prepared(stack: Stack) -> Prepared:
    """The stack on the device, with the graphs of its steps."""
    found = _PREPARED.get(stack)
    if found is None:
        shapes = list(dict.fromkeys(s for layer in stack.layers for s in shapes_of(layer)))
        layers = tuple(_ready(layer, [shapes.index(s) for s in shapes_of(layer)]) for layer in stack.layers)
        packed = all(layer.packed for layer in layers)
        found = _PREPARED[stack] = Prepared(layers, tuple(shapes), packed, Graphs(layers, tuple(shapes)))
    return found


def _ready(layer: Layer, shapes: list[int]) -> Ready:
    return Ready.of(layer, attention_of(layer.attention), mlp_of(layer.mlp), shapes[0], *shapes[1:])


def layers(
    h: F32,
    stack: Stack,
    angles: Sequence[Angles],
    segments: Sequence[Segments],
    slots: Sequence[Slots],
    *,
    activations: Activations,
) -> None:
    """Both blocks of all layers in order, h [R, E] in place."""
    check("h", h, np.float32, -1, -1)
    found = prepared(stack)
    if len(h) == 0 or not stack.layers:
        return
    if found.packed and activations == Activations.Q8 and len(h) <= MOST:
        found.graphs.run(h, angles, segments, slots)
        return
    there, cells = [_angles(a) for a in angles], [_slots(s) for s in slots]
    for layer in found.layers:
        g = layer.group
        _attention(h, layer.attention, layer.kv, there[layer.rope], segments[g], cells[g], activations)
        _mlp(h, layer.mlp, activations)


def attention_block(
    h: F32,
    w: AttentionWeights,
    kv: LayerKV,
    angles: Angles,
    segments: Segments,
    slots: Slots,
    *,
    activations: Activations,
) -> None:
    """Add the attention branch to h [R, E] in place, after writing the rows' K and V to `slots` and coding the units
    that are complete then."""
    check("h", h, np.float32, -1, -1)
    _attention(h, attention_of(w), kv, _angles(angles), segments, _slots(slots), activations)


def mlp_block(h: F32, w: MlpWeights, *, activations: Activations) -> None:
    """Add the MLP branch to h [R, E] in place."""
    _mlp(check("h", h, np.float32, -1, -1), mlp_of(w), activations)


def _attention(
    h: Any, w: Attention, kv: LayerKV, angles: Angles, segments: Segments, slots: Slots, activations: Activations
) -> None:
    c, n, e = w.given, len(h), w.equalizer
    m = rms_norm(h, w.norm, c.eps)
    q, k, v = (y.reshape(n, -1, c.head_dim) for y in _products(m, w.qkv, activations))
    width, slices = slices_of(c.head_dim)
    queries = cupy().empty((n, c.n_heads, width * slices), np.float32)
    write_both(
        kv if kv.exact is None else kv.exact,
        New(k, w.k_bias, e.k),
        New(v, w.v_bias, e.v),
        slots,
        KeySteps(w.k_norm, c.eps, angles),
        Queries(New(q, w.q_bias, e.q), w.q_norm, queries),
    )
    if kv.exact is not None and slots.seals is not None:
        kv_seal(kv.k, kv.exact.k, slots.seals)
        kv_seal(kv.v, kv.exact.v, slots.seals)
    o = cupy().empty((n, c.n_heads, c.head_dim), np.float32)
    _attended(queries, segments, kv, {"scale": c.scale, "window": c.window, "softcap": c.softcap}, o)
    if e.out is not None:
        o *= e.out
    (y,) = _products(o.reshape(n, -1), w.wo, activations)
    h += y if w.post_norm is None else rms_norm(y, w.post_norm, c.eps)


def _attended(q: F32, segments: Segments, kv: LayerKV, how: dict[str, Any], out: F32) -> None:
    """Results [R, H, D] of queries in the space of the cells that new ones are written to."""

    def part(q: F32, segments: Segments, cells: LayerKV, to: F32) -> tuple[F32, F32]:
        y, lse = attend_codes(q, segments, cells, **how)
        out_of(y, cells.v.codec, to)
        return to, lse

    if kv.exact is None or segments.exact is None:
        part(q, segments, kv, out)
        return
    # Exact keys are not rotated.
    own = cupy().ascontiguousarray(q[:, :, : out.shape[2]])
    turned = space_of(own, kv.k.codec, q.shape[2]) if kv.k.codec.rotated else q
    merged([partial(part, turned, segments, kv), partial(part, q, segments.exact, kv.exact)], out)


def _mlp(h: Any, w: Mlp, activations: Activations) -> None:
    m = rms_norm(h, w.norm, w.given.eps)
    gate, up = _products(m, w.gate_up, activations)
    inner = glu_columns(gate, up, w.given.glu, cupy().empty(gate.shape, np.float32))
    (y,) = _products(inner, w.down, activations)
    h += y if w.post_norm is None else rms_norm(y, w.post_norm, w.given.eps)


def _products(m: Any, ws: Products, activations: Activations) -> list[Any]:
    """Rows times each of the matrices that were joined."""
    ys = [linear(m, w, activations=activations) for w in ws.matrices]
    return [ys[i][:, first : first + rows] for i, first, rows in ws.parts]


def _angles(a: Angles) -> Angles:
    return Angles(vector(a.cos), vector(a.sin), a.interleaved)


def _slots(s: Slots) -> Slots:
    seals = s.seals and Seals(vector(s.seals.exact), vector(s.seals.coded), vector(s.seals.sinks))
    return Slots(vector(s.blocks), vector(s.offsets), seals)
