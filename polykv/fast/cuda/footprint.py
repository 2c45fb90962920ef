"""What a session takes of a device, beside K/V: figures for a plan, and memory for steps that is there from the start.

Steps take their arrays from CuPy's pool. It is given one piece of memory at the beginning, as much as the largest step
takes by the sizes below, and cuts arrays from it; if that is not enough it gets more from the driver (`held` says so).
"""

from __future__ import annotations

from collections.abc import Sequence

from polykv.fast.cuda.arena import Arena, paged
from polykv.fast.cuda.attend_plan import QUERIES
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.few_rows import MOST
from polykv.fast.cuda.layers import prepared
from polykv.fast.cuda.layout import kind_of, slices_of
from polykv.fast.cuda.lift import F16, ROOM
from polykv.fast.cuda.linear_many import TILE
from polykv.fast.cuda.placed import place, placed_bytes, weight_bytes
from polykv.fast.cuda.shared_config import QUERIES as SHARED
from polykv.fast.cuda.weights import STAGED
from polykv.types import Activations, AttentionWeights, Codec, MlpWeights, ModelWeights, Stack

# Compiled kernels, cuBLAS with its workspace, tables of codecs: what a session adds to the context of the driver.
PROGRAMS = 128 << 20
# Arrays of different sizes leave holes in a piece of memory that they are cut from.
HOLES = 1.25


def memory() -> tuple[int, int]:
    """Bytes that are free, those that CuPy keeps for later included, and all of the device."""
    free, total = cupy().cuda.runtime.memGetInfo()
    return int(free) + int(cupy().get_default_memory_pool().free_bytes()), int(total)


def footprint(
    weights: ModelWeights,
    pairs: Sequence[tuple[Codec, Codec]],
    *,
    rows: int,
    logits: int,
    cells: int,
    activations: Activations,
) -> dict[str, int]:
    """Bytes of the weights as they lie on the device, of steps, and of programs (`polykv.ops_facts.Memory`)."""
    layers = zip(weights.attention, weights.mlp, pairs, strict=True)
    n, width, out = max(rows, MOST), weights.embedding.cols, weights.head.out
    value = 2 if activations == Activations.Q8 else 4
    most = max((_layer(a, m, pair, n, cells, value) for a, m, pair in layers), default=0)
    # Logits are penalized in a copy, and what is not finite in them is looked for.
    head = 4 * logits * (2 * out.rows + 2 * width) + (_many(out.rows, width, logits, value) if logits > MOST else 0)
    staged = min(STAGED, max(w.nbytes for w in (weights.embedding, out)))
    steps = int(HOLES * max(most + 4 * n * width, head, staged)) + _few_rows(weights)
    return {"weights": paged(weight_bytes(weights)), "steps": paged(steps), "programs": PROGRAMS}


def settle(weights: ModelWeights, steps: int) -> None:
    """Take all weights to the device, and give CuPy's pool a piece of so many bytes. Raises CapacityError."""
    cp = cupy()
    pool = cp.get_default_memory_pool()
    # Sessions of one process take turns, so they share it: as much as the largest takes.
    steps = max(steps, int(pool.free_bytes()))
    pool.free_all_blocks()
    # In one piece, which is free again at once: the pool keeps it, and cuts arrays from it.
    piece = Arena(steps, pool.malloc)
    del piece
    place(weights)


def held(weights: ModelWeights, stack: Stack) -> dict[str, int]:
    """Bytes that are taken now (`polykv.ops_facts.Memory`)."""
    free, total = cupy().cuda.runtime.memGetInfo()
    pool = cupy().get_default_memory_pool()
    return {
        "weights": placed_bytes(weights),
        "graphs": prepared(stack).graphs.nbytes,
        "steps": int(pool.total_bytes()),
        "driver": int(total - free),
    }


def _few_rows(weights: ModelWeights) -> int:
    """Bytes of the workspace of graphs (few_rows.py), with partial results of attention for all that runs at once."""
    found = 0
    for a, m in zip(weights.attention, weights.mlp, strict=True):
        width, slices = slices_of(a.head_dim)
        products = 4 * sum(w.rows for w in (a.wq, a.wk, a.wv, a.wo, m.gate, m.up, m.down))
        # Codes of rows, and two words for every 32 of them.
        codes = int(1.25 * (a.wq.cols + a.wo.cols + m.down.cols))
        queries = 8 * a.n_heads * (width * slices + 1)
        # Of the kernel for few queries, and of that for segments that many share.
        parts = (2 * QUERIES * 4 + 2 * SHARED) * device().processors
        sums = parts * (width * slices + 2) * 4
        found = max(found, MOST * (products + codes + queries + 4 * weights.embedding.cols) + sums)
    return found


def _layer(a: AttentionWeights, m: MlpWeights, pair: tuple[Codec, Codec], n: int, cells: int, value: int) -> int:
    """Most bytes that are in use at once while n rows go through a layer (layers.py), the rows themselves left out.
    value: bytes of an unpacked weight."""
    width, slices = slices_of(a.head_dim)
    embd, own, dims = a.wq.cols, a.n_heads * a.head_dim, a.n_heads * width * slices
    qkv, gates = a.wq.rows + a.wk.rows + a.wv.rows, m.gate.rows + m.up.rows
    base = 4 * n * embd
    lifted = sum(2 * a.n_kv * width * slices * cells for codec in pair if kind_of(codec) is not F16)
    attended = base + 4 * n * (qkv + 2 * dims + 2 * a.n_heads)
    # Partial results: of rows that read several segments, and of what is cut to fill the device.
    parts = 4 * (2 * n * dims + 4 * device().processors * 128 * width * slices)
    return max(
        base + 4 * n * qkv + _many(qkv, embd, n, value),
        attended + parts + min(ROOM, lifted),
        attended + 12 * n * own,
        attended + 4 * n * (own + embd) + _many(embd, own, n, value),
        base + 4 * n * gates + _many(gates, embd, n, value),
        base + 4 * n * (gates + m.down.cols + embd) + _many(embd, m.down.cols, n, value),
    )


def _many(rows: int, cols: int, n: int, value: int) -> int:
    """Bytes of a product of n rows beside operands and result: rounded rows, and a tile of W (linear_many.py)."""
    return 2 * n * cols + 4 * n + value * max(cols, min(rows * cols, TILE))
