"""The layers of a step of few rows, with rows of int8 between products: some ten kernels a layer, without the host.

    residual          h += what the product before gave;  m = rms_norm(h) as int8
    product           Q, K and V, one kernel for all matrices of a type
    kv_append_both    K and V into their cells, Q into the space of the keys; Q before them where they take long
    attend, merge     on codes; where cells are exact first, more (few_exact.py); of rows that share cells no merge
    outputs           out of the space of the values, as int8
    product           Wo
    residual, product, glu, product                     the MLP, likewise

Nothing is allocated here but by a `Workspace`, nothing is copied from or to the host, and no launch depends on the
length of a sequence: what does is read from `StepTables`. So the launches can be captured in a graph (graphs.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda.attend_run import run_partly
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.few_exact import Attended, Way, attend_exact, attend_rows
from polykv.fast.cuda.forms import Use, form_of, size_defines
from polykv.fast.cuda.glu import GATES
from polykv.fast.cuda.kv_write import KeySteps, New, Queries, write_both
from polykv.fast.cuda.linear_int8 import Int8Rows, product, takes_tiles
from polykv.fast.cuda.placed import Attention, Mlp, Products
from polykv.fast.cuda.source import Define
from polykv.fast.cuda.step_tables import StepTables
from polykv.fast.cuda.workspace import Workspace
from polykv.types import F32, Angles, Layer, LayerKV, Slots

# Rows up to which a step is made of these kernels: what a product on packed weights takes (linear.py).
MOST = 32
OUTPUT_WARPS, GLU_THREADS, RESIDUAL_THREADS = 4, 256, 256


@dataclass(frozen=True, eq=False)
class Pending:
    """The result of a product that is to be added to h; post, eps: after a norm."""

    y: F32
    post: F32 | None
    eps: float


@dataclass(frozen=True, eq=False)
class Ready:
    """A layer with its weights on the device, and which plan of a step is its own; exact: that over exact cells."""

    attention: Attention
    mlp: Mlp
    kv: LayerKV
    group: int
    rope: int
    shape: int
    exact: int = -1

    @property
    def packed(self) -> bool:
        """Whether all products take rows of int8."""
        a, m = self.attention, self.mlp
        return all(ws.packed for ws in (a.qkv, a.wo, m.gate_up, m.down))

    @staticmethod
    def of(layer: Layer, attention: Attention, mlp: Mlp, shape: int, exact: int = -1) -> Ready:
        return Ready(attention, mlp, layer.kv, layer.group, layer.rope, shape, exact)


def run_layers(h: F32, layers: Sequence[Ready], tables: StepTables, room: Workspace) -> None:
    """Attention and MLP of all layers, h [rows, E] in place; rows as the tables have them."""
    pending: Pending | None = None
    for layer in layers:
        a = layer.attention
        slots = tables.slots[layer.group]
        ways = [Way(tables.steps[i], tables.rooms.configs[i]) for i in (layer.shape, layer.exact) if i >= 0]
        x = residual(h, pending, a.norm, a.given.eps, a.qkv, room)
        pending = attention(x, a, layer.kv, tables.angles[layer.rope], slots, ways, room)
        x = residual(h, pending, layer.mlp.norm, layer.mlp.given.eps, layer.mlp.gate_up, room)
        pending = mlp(x, layer.mlp, room)
    if pending is not None:
        _residual(h, pending, None, 0.0, None)


def residual(h: F32, pending: Pending | None, norm: F32, eps: float, ws: Products, room: Workspace) -> Int8Rows:
    """Add what is pending to h, and round its normed rows."""
    x = int8_room("x", len(h), ws, room)
    _residual(h, pending, norm, eps, x)
    return x


def _residual(h: F32, pending: Pending | None, norm: F32 | None, eps: float, x: Int8Rows | None) -> None:
    add = 0 if pending is None else 1 if pending.post is None else 2
    y, post, post_eps = (None, None, 0.0) if pending is None else (pending.y, pending.post, pending.eps)
    n, cols = h.shape
    made = kernel(
        *("residual.cu", "residual"),
        RESIDUAL_ADD=add,
        RESIDUAL_NEXT=int(x is not None),
        RESIDUAL_FOURS=-(-cols // (4 * RESIDUAL_THREADS)),
        QUANTIZE_TILES=int(x is not None and x.tiles),
    )
    codes, scales, rows = (None, None, n) if x is None else (x.codes, x.scales, x.codes.shape[0])
    arguments = (h, y, post, np.float64(post_eps), norm, np.float64(eps), codes, scales, n, cols)
    launch(made, (rows,), (RESIDUAL_THREADS,), arguments)


def int8_room(name: str, n: int, ws: Products, room: Workspace) -> Int8Rows:
    """Where n rounded rows go that these matrices take."""
    cols, tiles = ws.cols, any(takes_tiles(w, n) for w in ws.matrices)
    rows = -(-n // 8) * 8 if tiles else n
    codes, scales = (name + " codes", (rows, cols), np.int8), (name + " scales", (rows, cols // 32, 2), np.uint32)
    return Int8Rows(room.take(*codes), room.take(*scales), n, tiles)


def products(name: str, ws: Products, x: Int8Rows, room: Workspace) -> list[Any]:
    """Rows times each of the matrices that were joined: columns of one array, or arrays."""
    ys = [room.take(f"{name} {i}", (x.n, w.rows)) for i, w in enumerate(ws.matrices)]
    for y, w in zip(ys, ws.matrices, strict=True):
        product(y, w, x)
    return [ys[i][:, first : first + rows] for i, first, rows in ws.parts]


def attention(
    x: Int8Rows, w: Attention, kv: LayerKV, angles: Angles, slots: Slots, ways: Sequence[Way], room: Workspace
) -> Pending:
    """The attention branch of normed rows x; ways: over codes, and over exact cells, if there are any."""
    c, n, e = w.given, x.n, w.equalizer
    q, k, v = (y.reshape(n, -1, c.head_dim) for y in products("qkv", w.qkv, x, room))
    dims = ways[0].made.width * ways[0].made.slices
    queries = room.take("queries", (n, c.n_heads, dims))
    write_both(
        kv if kv.exact is None else kv.exact,
        New(k, w.k_bias, e.k),
        New(v, w.v_bias, e.v),
        slots,
        KeySteps(w.k_norm, c.eps, angles),
        Queries(New(q, w.q_bias, e.q), w.q_norm, queries),
    )
    if kv.exact is None and ways[0].step.shared is not None:
        step = ways[0].step
        run_partly(step, ways[0].made, queries, kv.k, kv.v, scale=c.scale, window=c.window, softcap=c.softcap)
        x = _outputs([Attended(step.sums, step.weights)], w, kv, room, (n, c.n_heads, dims), (step.ptr, step.parts))
        (y,) = products("y", w.wo, x, room)
        return Pending(y, w.post_norm, c.eps)
    if kv.exact is None:
        found = [attend_rows(queries, c, kv, ways[0], room, "codes")]
    else:
        found = [*attend_exact(queries, c, kv, kv.exact, slots.seals, (ways[0], ways[1]), room)]
    (y,) = products("y", w.wo, _outputs(found, w, kv, room, (n, c.n_heads, dims)), room)
    return Pending(y, w.post_norm, c.eps)


def _outputs(
    found: Sequence[Attended],
    w: Attention,
    kv: LayerKV,
    room: Workspace,
    shape: tuple[int, int, int],
    lists: tuple[Any, Any] | None = None,
) -> Int8Rows:
    """Results of attention over codes, and over exact cells, if there are any, as rows of int8 in the true space.
    shape: rows, heads and dims; lists: of the partial results (`Step`) that results are still in."""
    n, heads, dims = shape
    head_dim, form = w.given.head_dim, form_of(kv.v.codec, w.given.head_dim, Use.V)
    y = int8_room("out", n, w.wo, room)
    whole, rows = head_dim % 32 == 0, y.codes.shape[0]
    plain = None if whole else room.take("plain", (n, heads * head_dim))
    exact = found[1] if len(found) > 1 else None
    defines: dict[str, Define] = {
        "OUTPUT_INT8": int(whole),
        "OUTPUT_EXACT": int(exact is not None),
        "OUTPUT_PARTS": int(lists is not None),
        "QUANTIZE_TILES": int(y.tiles),
    }
    defines |= size_defines("V", form.sizes)
    made = kernel("attention_outputs.cu", "attention_outputs", **defines)
    many = rows if whole else n
    of_exact = (None, None) if exact is None else (exact.out, exact.lse)
    parts = (found[0].out, found[0].lse, *of_exact)
    sizes = (n, many, heads, dims)
    arguments = (plain, y.codes, y.scales, *parts, *form.tables[1:], w.equalizer.out, *sizes, *(lists or (None, None)))
    launch(made, (-(-many * heads // OUTPUT_WARPS),), (32 * OUTPUT_WARPS,), arguments, shared=form.shared)
    if plain is not None:
        total = y.codes.size // 4
        made = kernel("quantize.cu", "quantize_rows", QUANTIZE_TILES=int(y.tiles))
        launch(made, (-(-total // GLU_THREADS),), (GLU_THREADS,), (y.codes, y.scales, plain, n, plain.shape[1], total))
    return y


def mlp(x: Int8Rows, w: Mlp, room: Workspace) -> Pending:
    """The MLP branch of normed rows x."""
    gate, up = products("ffn", w.gate_up, x, room)
    rows = int8_room("ffn", x.n, w.down, room)
    total = rows.codes.size // 4
    made = kernel("glu_int8.cu", "glu_int8", GLU_GATE=GATES[w.given.glu], QUANTIZE_TILES=int(rows.tiles))
    pitches = gate.strides[0] // 4, up.strides[0] // 4
    arguments = (rows.codes, rows.scales, gate, up, *pitches, x.n, w.down.cols, total)
    launch(made, (-(-total // GLU_THREADS),), (GLU_THREADS,), arguments)
    (y,) = products("y", w.down, rows, room)
    return Pending(y, w.post_norm, w.given.eps)
