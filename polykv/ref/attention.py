"""attend: softmax attention over a list of segments, reading the codes.

    s_i = cap(scale * <q, k_i>)      o = sum_i exp(s_i) v_i / sum_i exp(s_i)      lse = log sum_i exp(s_i)

over the cells i that a row sees: position at most its own, and inside its window. cap(s) = c tanh(s / c) if a softcap
c is given. Keys of a rotated codec stay rotated: the query is rotated instead, once, and <rot q, rot k> = <q, k>.
Values of a rotated codec are summed rotated, and the sum is rotated back once. Segments are folded in by log-sum-exp
(merge.py), in float64, so the result depends on how cells are cut into segments by float64 rounding only. Exact cells
(`Segments.exact`, docs/CENTERED.md) are one more part, merged in true space.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polykv.ref.merge import F64, combine
from polykv.ref.storage import enter_stored_space, leave_stored_space, read_stored, stored_dim
from polykv.ref.weights import give
from polykv.types import F32, I32, LayerKV, Segment, Segments

# Cells that are decoded at a time; keeps the score matrix small at any context length.
TILE = 1024


def attend(
    q: F32,
    segments: Segments,
    kv: LayerKV,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    out: F32 | None = None,
) -> tuple[F32, F32]:
    """q [R, H, D] over the segments' cells: out [R, H, D] in true space, lse [R, H].

    Query head h reads kv head h // (H / G). Rows that see nothing get out = 0 and lse = -inf.
    """
    y, lse = _attend(q, segments, kv, scale, window, softcap)
    if segments.exact is not None and kv.exact is not None:
        more = _attend(q, segments.exact, kv.exact, scale, window, softcap)
        y, lse = combine(np.stack([y, more[0]]), np.stack([lse, more[1]]))
    return give(y.astype(np.float32), out), lse.astype(np.float32)


def _attend(q: F32, segments: Segments, kv: LayerKV, scale: float, window: int, softcap: float) -> tuple[F64, F64]:
    """The same over one kind of cells, in float64."""
    turned = enter_stored_space(kv.k, q.astype(np.float64))
    acc = np.zeros((*q.shape[:2], stored_dim(kv.v)))
    lse = np.full(q.shape[:2], -np.inf)
    for seg in segments:
        for blocks, start, n in _tiles(seg, kv.k.block_size):
            cells = np.arange(start, start + n)
            visible = _visible(segments.positions[seg.rows], cells, window) & (cells >= segments.first)
            some = visible.any(axis=1)
            if not some.any():
                continue
            rows = seg.rows[some]
            k = _cells(read_stored(kv.k, blocks), n)
            v = _cells(read_stored(kv.v, blocks), n)
            part, part_lse = softmax_part(turned[rows], k, v, visible[some], scale, softcap)
            acc[rows], lse[rows] = combine(np.stack([acc[rows], part]), np.stack([lse[rows], part_lse]))
    return leave_stored_space(kv.v, acc), lse


def softmax_part(q: F64, k: F64, v: F64, visible: np.ndarray, scale: float, softcap: float) -> tuple[F64, F64]:
    """Attention of q [m, H, Dk] over cells k [n, G, Dk], v [n, G, Dv]: out [m, H, Dv], lse [m, H].

    visible [m, n] says which cells a row sees; every row sees at least one.
    """
    m, n_heads, _ = q.shape
    n_kv = k.shape[1]
    share = n_heads // n_kv
    # [G, m * share, D]: all query heads of one kv head meet its cells in one product.
    grouped = q.reshape(m, n_kv, share, -1).transpose(1, 0, 2, 3).reshape(n_kv, m * share, -1)
    s = scale * (grouped @ k.transpose(1, 2, 0))
    if softcap > 0:
        s = softcap * np.tanh(s / softcap)
    s = np.where(np.repeat(visible, share, axis=0), s, -np.inf)
    top = s.max(axis=-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(axis=-1, keepdims=True)
    o = (e @ v.transpose(1, 0, 2)) / total
    lse = (top + np.log(total))[..., 0]
    back = o.reshape(n_kv, m, share, -1).transpose(1, 0, 2, 3).reshape(m, n_heads, -1)
    return back, lse.reshape(n_kv, m, share).transpose(1, 0, 2).reshape(m, n_heads)


def _tiles(seg: Segment, size: int) -> Iterator[tuple[I32, int, int]]:
    """Cut a segment into runs of whole blocks: block ids, position of the first cell, number of valid cells."""
    step = max(1, TILE // size)
    for b in range(0, -(-seg.length // size), step):
        yield seg.blocks[b : b + step], seg.start + b * size, min(step * size, seg.length - b * size)


def _visible(positions: I32, cells: np.ndarray, window: int) -> np.ndarray:
    """Boolean [m, n]: which cells a row may look at."""
    seen: np.ndarray = cells <= positions[:, None]
    if window > 0:
        seen &= cells > positions[:, None] - window
    return seen


def _cells(stored: F32, n: int) -> F64:
    """Blocks [b, B, G, D] -> the first n cells [n, G, D] in float64."""
    return stored.reshape(-1, *stored.shape[2:])[:n].astype(np.float64)
