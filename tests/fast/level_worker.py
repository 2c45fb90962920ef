"""Run by test_levels.py in a process of its own: products of all weight types, greedy tokens, attention and trellis
paths, saved to the file argv[1].

The level of the kernels is what numba is told about the processor (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES) when a process
starts, so every level needs its own process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from attend_cases import problem
from case_base import FLOATS, normal, seeded, weight

from polykv.cache.codecs import codec
from polykv.fast.cpu import attend
from polykv.fast.cpu.linear import linear
from polykv.fast.cpu.planes import prepare_head
from polykv.fast.cpu.screen import greedy
from polykv.fast.cpu.simd_core import level
from polykv.fast.cpu.trellis import search, work_bytes
from polykv.fast.cpu.trellis_tables import constants
from polykv.types import WEIGHT_BLOCK, Activations, HeadWeights, WeightType


def products() -> dict[str, np.ndarray]:
    """y of every type: 5 rows (one group of four and one), 3 and 1 times 11 weight rows, and the level."""
    results: dict[str, np.ndarray] = {"level": np.array(level().name)}
    for kind in WeightType:
        rng = seeded(kind.name)
        # 17 blocks of 32, or 2 of 256.
        cols = 70 if kind in FLOATS else 544 if WEIGHT_BLOCK[kind][0] == 32 else 512
        w, x = weight(rng, kind, 11, cols), normal(rng, 5, cols)
        for mode in Activations:
            for n in (5, 3, 1):
                results[f"{kind.name}-{mode.name}-{n}"] = linear(x[:n], w, activations=mode)
    return results


def tokens() -> dict[str, np.ndarray]:
    """Greedy tokens by a screen, their logits and what was computed for them, and products with planes."""
    w = HeadWeights(np.ones(544, np.float32), weight(seeded("screen"), WeightType.Q8_0, 1000, 544), 0.0, 1e-6)
    h = normal(seeded("states"), 24, 544)
    found = prepare_head(w, np.full(544, 2, np.float32), converted=lambda row: None)
    results = {f"planes-{n}": linear(h[:n], found.out, activations=Activations.Q8) for n in (1, 3, 24)}
    greedies = [greedy(h[r : r + 2], found, activations=Activations.Q8) for r in range(0, 24, 2)]
    for field in ("ids", "logits", "exact"):
        results[f"greedy-{field}"] = np.concatenate([getattr(g, field) for g in greedies])
    return results


def attentions() -> dict[str, np.ndarray]:
    """Outputs of attention for rows that are one tile of three, of four, and many."""
    results: dict[str, np.ndarray] = {}
    pairs = (
        "f16/f16",
        "q8_0/turbo3",
        "q4_0/q8_0",
        "turbo3/q4_0",
        "q6_0/q5_1",
        "turbo8/turbo2_tcq",
        "turbo3_tcq/iq4_nl",
    )
    for pair in (*pairs, "q5_0/turbo4", "bf16/turbo2"):
        for rows, heads in ((1, 3), (1, 4), (40, 2)):
            p = problem(pair, rows, heads, 1, 64, 600)
            segments = p.segments([600 - rows + r for r in range(rows)])
            results[f"{pair}-{rows}x{heads}"], _ = attend(p.q, segments, p.kv, scale=0.125)
    # Heads whose rotation is no power of two, whole panels of 16 and not.
    for pair, dim in (("turbo3/turbo3", 112), ("turbo3/turbo3", 72), ("turbo8/turbo3_tcq", 72), ("q8_0/f16", 100)):
        p = problem(pair, 3, 2, 1, dim, 600)
        results[f"{pair}-{dim}"], _ = attend(p.q, p.segments([597, 598, 599]), p.kv, scale=0.125)
    return results


def errors() -> dict[str, np.ndarray]:
    """Squared errors of trellis paths."""
    results: dict[str, np.ndarray] = {}
    for name in ("turbo3_tcq", "turbo2_tcq"):
        c, x = codec(name), (normal(seeded(name), 5, 96) / 11).astype(np.float32)
        states, work, table = np.zeros((5, 96), np.uint32), np.empty(work_bytes(96), np.uint8), constants(c)
        search(x.ctypes.data, 5, 96, c.bits, *(a.ctypes.data for a in (table, work, states)))
        results[name] = np.square(x - np.array(c.centroids, np.float32)[states]).sum(axis=1)
    return results


if __name__ == "__main__":
    np.savez(sys.argv[1], **products(), **tokens(), **attentions(), **errors())
