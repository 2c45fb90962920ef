"""Random attention problems on real storage, and their float64 answer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from polykv.cache.codecs import codec
from polykv.fast.cpu import kv_alloc, kv_append, kv_read
from polykv.types import F32, I32, LayerKV, Segment, Segments, Slots

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Queries [R, H, D] over stored keys and values; `table` is the block table of one sequence."""

    q: F32
    kv: LayerKV
    table: I32
    tokens: int

    def segments(self, positions: list[int], cuts: list[int] | None = None) -> Segments:
        """All rows see all blocks, cut into segments at the given block indices."""
        size = self.kv.k.block_size
        edges = [0, *(cuts or []), len(self.table)]
        rows = np.arange(len(positions), dtype=np.int32)
        items = [
            Segment(self.table[a:b], a * size, min(self.tokens - a * size, (b - a) * size), rows)
            for a, b in pairwise(edges)
        ]
        return Segments.of(items, np.array(positions, np.int32))


def problem(
    pair: str,
    rows: int,
    heads: int,
    n_kv: int,
    dim: int,
    tokens: int,
    *,
    block: int = 64,
    seed: int = 0,
    gain: float = 1.0,
) -> Problem:
    """Seeded data; blocks lie in random order and the unused cells of the arena hold other tokens."""
    rng = np.random.default_rng(seed)
    k, v = (codec(name) for name in pair.split("/"))
    n = -(-tokens // block)
    kv = LayerKV(kv_alloc(k, n + 2, n_kv, dim, block), kv_alloc(v, n + 2, n_kv, dim, block))
    every = np.arange((n + 2) * block, dtype=np.int32)
    for arena in (kv.k, kv.v):
        x = rng.standard_normal((len(every), n_kv, dim)).astype(np.float32) * np.float32(gain)
        kv_append(arena, x, Slots(every // block, every % block))
    q = rng.standard_normal((rows, heads, dim)).astype(np.float32) * np.float32(gain)
    return Problem(q, kv, rng.permutation(n + 2)[:n].astype(np.int32), tokens)


def answer(q: F32, s: Segments, kv: LayerKV, scale: float, window: int = 0, softcap: float = 0.0) -> tuple[F64, F64]:
    """Float64 attention on the decoded values, row by row."""
    rows, heads, dim = q.shape
    out, lse = np.zeros((rows, heads, dim)), np.full((rows, heads), -np.inf)
    for r in range(rows):
        keys, values = [], []
        for seg in s:
            if r not in seg.rows:
                continue
            at = seg.start + np.arange(seg.length)
            seen = (at <= s.positions[r]) & ((at > s.positions[r] - window) | (window == 0))
            for arena, found in ((kv.k, keys), (kv.v, values)):
                cells = kv_read(arena, seg.blocks).astype(np.float64).reshape(-1, arena.n_kv, dim)
                found.append(cells[: seg.length][seen])
        k, v = (np.concatenate(x) if x else np.zeros((0, kv.k.n_kv, dim)) for x in (keys, values))
        for h in range(heads if len(k) else 0):
            g = h * kv.k.n_kv // heads
            x = k[:, g] @ q[r, h].astype(np.float64) * scale
            x = softcap * np.tanh(x / softcap) if softcap else x
            w = np.exp(x - x.max())
            out[r, h], lse[r, h] = w @ v[:, g] / w.sum(), x.max() + np.log(w.sum())
    return out, lse


def error(x: F32, truth: F64) -> float:
    """RMS error relative to the RMS of the truth."""
    return float(np.sqrt(((x - truth) ** 2).mean() / (truth**2).mean()))
