"""Attention on codes of every K/V pair against float64 attention on the values that the codes decode to.

    python benchmarks/pairs.py                                      # all pairs, head sizes and group sizes
    python benchmarks/pairs.py --dims 80,96 --gqa 8 --k turbo3      # a part: these head sizes, K of these types
    python benchmarks/pairs.py --seed 3 --out results/pairs.json --machine "2 vCPU of ..."

A case is a type of K, a type of V, a head_dim and a number of query heads per kv head (GQA). Every case runs two steps
over the same cells, keys and values drawn from N(0, 1), two kv heads:

    few    rows that see 4,096 cells, an empty segment and one cell; one cell only; 4,096 cells of which a window hides
           all but 100; cells that are all later than they are; cells that are all out of the window; nothing
    many   33 rows (one more than a tile) at the end of 4,096 cells

so that both ways of sharing the work run. The error of a step is the RMS of (result - truth) over the RMS of the truth,
over all its rows, and of each of its rows; the largest of them counts. Rows that see nothing must be 0, with a
log-sum-exp of -inf, and no result may be NaN. Codes and values are made once per type and head size, softmax weights
once per K. The last line is one JSON object; the process ends with code 1 when a case is above 1e-3.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from quality import commit

from polykv.cache.codecs import codec
from polykv.config import CacheConfig
from polykv.measure.speed import store
from polykv.ops import LoadedOps, load
from polykv.types import F32, LayerKV, Segment, Segments

F64 = npt.NDArray[np.float64]

TURBO = ("turbo8", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq")
TYPES = ("f16", "bf16", "q8_0", "q6_0", "q5_1", "q5_0", "q4_0", *TURBO)
DIMS, GQA = (64, 80, 96, 128, 192, 256, 512), (1, 3, 4, 8)
BOUND = 1e-3
N_KV, CELLS, WINDOW = 2, 4096, 4200
BLOCK = CacheConfig.block_size
# One block more, whose first cell is a segment of its own.
BLOCKS = CELLS // BLOCK + 1


@dataclass(frozen=True)
class Step:
    """One call of `attend`: what the rows read, and which cells that are, bool [R, BLOCKS * BLOCK]."""

    segments: Segments
    window: int
    seen: npt.NDArray[np.bool_]

    @property
    def rows(self) -> int:
        return len(self.segments.positions)


@dataclass
class Worst:
    """The largest error so far and how often something was not as it must be."""

    error: float = 0.0
    wrong: int = 0


def step(items: list[Segment], positions: list[int], window: int) -> Step:
    """A step of rows at these positions."""
    seen = np.zeros((len(positions), BLOCKS * BLOCK), np.bool_)
    for s in items:
        cells = s.start + np.arange(s.length)
        stored = np.repeat(s.blocks, BLOCK)[: s.length] * BLOCK + np.arange(s.length) % BLOCK
        for r in s.rows:
            visible = cells <= positions[r]
            if window:
                visible &= cells > positions[r] - window
            seen[r, stored[visible]] = True
    return Step(Segments.of(items, np.array(positions, np.int32)), window, seen)


def steps() -> dict[str, Step]:
    """The two steps of every case. The long segment lies in blocks in random order."""
    order = np.random.default_rng(7).permutation(BLOCKS).astype(np.int32)
    long, last, none = order[:-1], order[-1:], order[:0]
    rows = [np.array(r, np.int32) for r in ([0, 2, 3, 4], [0], [0, 1, 3])]
    few = [Segment(long, 0, CELLS, rows[0]), Segment(none, CELLS, 0, rows[1]), Segment(last, CELLS + 64, 1, rows[2])]
    # Row 2 has 100 cells left in its window, row 3 sits before all cells, row 4 after its window; row 5 is in no list.
    few_at = [CELLS + 64, CELLS + 64, CELLS + WINDOW - 101, -1, CELLS + WINDOW, 0]
    every = np.arange(33, dtype=np.int32)
    return {
        "few": step(few, few_at, WINDOW),
        "many": step([Segment(long, 0, CELLS, every)], list(range(CELLS - 33, CELLS)), 0),
    }


def weights(q: F32, keys: F64, seen: npt.NDArray[np.bool_], scale: float) -> tuple[F64, F64]:
    """Softmax weights [G, R * share, T] of q [R, H, D] on keys [G, T, D], and log-sum-exps [R, H]."""
    rows, heads, dim = q.shape
    share = heads // N_KV
    grouped = q.reshape(rows, N_KV, share, dim).transpose(1, 0, 2, 3).reshape(N_KV, rows * share, dim)
    s = scale * (grouped.astype(np.float64) @ keys.transpose(0, 2, 1))
    s[:, ~np.repeat(seen, share, axis=0)] = -np.inf
    top = s.max(axis=-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    back = lse.reshape(N_KV, rows, share).transpose(1, 0, 2).reshape(rows, heads)
    return e / np.where(total > 0, total, 1), back


def compare(out: F32, lse: F32, truth: F64, truth_lse: F64, worst: Worst) -> None:
    """Take up the errors of one step: out, truth [R, H, D], log-sum-exps [R, H]."""
    unseen = np.isneginf(truth_lse)
    silent = not out[unseen].any() and np.array_equal(np.isneginf(lse), unseen)
    if not silent or not np.isfinite(out).all() or np.isnan(lse).any():
        worst.wrong += 1
        return
    some = ~unseen.all(axis=1)
    square = np.square(out - truth)[some].mean(axis=(1, 2)), np.square(truth)[some].mean(axis=(1, 2))
    # Where the truth is zero nothing but zero will do.
    each = np.sqrt(square[0] / np.maximum(square[1], np.finfo(np.float64).tiny))
    worst.error = max(worst.error, float(each.max()), float(np.sqrt(square[0].mean() / square[1].mean())))


def cells(ops: LoadedOps, names: list[str], dim: int, seed: int) -> dict[str, tuple[LayerKV, F64, F64]]:
    """By type: K and V in it, and what they decode to, float64 [G, T, D] each. Values of all types are the same."""
    k, v = np.random.default_rng([seed, dim]).standard_normal((2, BLOCKS * BLOCK, N_KV, dim), np.float32)
    every, found = np.arange(BLOCKS, dtype=np.int32), {}
    for name in names:
        kv = store(ops, codec(name), codec(name), k, v)
        read = (ops.kv_read(a, every).reshape(-1, N_KV, dim).transpose(1, 0, 2) for a in (kv.k, kv.v))
        decoded = [np.ascontiguousarray(x, np.float64) for x in read]
        found[name] = kv, decoded[0], decoded[1]
    return found


def measure(
    ops: LoadedOps, keys: list[str], values: list[str], dim: int, gqa: tuple[int, ...], seed: int
) -> Iterator[tuple[str, str, int, Worst]]:
    """All cases of one head size: K, V, query heads per kv head, and what was found."""
    stored, scale = cells(ops, list(dict.fromkeys([*keys, *values])), dim, seed), dim**-0.5
    for share in gqa:
        found = {(k, v): Worst() for k in keys for v in values}
        for name, s in steps().items():
            rng = np.random.default_rng([seed, dim, share, s.rows])
            q = rng.standard_normal((s.rows, N_KV * share, dim), np.float32)
            # Half of the heads look sharply, at few cells, the others at many.
            q[:, ::2] *= 4 if name == "few" else 1
            for k in keys:
                p, truth_lse = weights(q, stored[k][1], s.seen, scale)
                for v in values:
                    kv = LayerKV(stored[k][0].k, stored[v][0].v)
                    unwritten = np.full(q.shape, np.nan, np.float32)
                    out, lse = ops.attend(q, s.segments, kv, scale=scale, window=s.window, out=unwritten)
                    truth = (p @ stored[v][2]).reshape(N_KV, s.rows, share, dim).transpose(1, 0, 2, 3)
                    compare(out, lse, truth.reshape(q.shape), truth_lse, found[k, v])
        yield from ((k, v, share, worst) for (k, v), worst in found.items())


def summary(cases: list[tuple[int, int, str, str, Worst]]) -> dict[str, object]:
    """Figures of all cases (head_dim, GQA, K, V, what was found): the largest error, over all and by everything."""

    def largest(column: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for case in cases:
            key = str(case[column])
            found[key] = max(found.get(key, 0.0), case[4].error)
        return {key: float(f"{x:.3g}") for key, x in found.items()}

    by = {name: largest(i) for i, name in enumerate(("head_dim", "gqa", "k", "v"))}
    dim, share, k, v, most = max(cases, key=lambda c: c[4].error)
    return {
        "cases": len(cases),
        "wrong": sum(c[4].wrong for c in cases),
        "above": sum(c[4].error > BOUND for c in cases),
        "worst": {"error": float(f"{most.error:.3g}"), "k": k, "v": v, "head_dim": dim, "gqa": share},
        "by": by,
    }


def main() -> None:
    """Parse arguments, run the cases, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default=",".join(map(str, DIMS)), help="head sizes")
    parser.add_argument("--gqa", default=",".join(map(str, GQA)), help="query heads per kv head")
    parser.add_argument("--k", default=",".join(TYPES), help="types of K")
    parser.add_argument("--v", default=",".join(TYPES), help="types of V")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--machine", default=f"{platform.machine()}, {platform.system()}", help="how to call it")
    parser.add_argument("--out", type=Path, help="file that takes the last line")
    args = parser.parse_args()
    ops, gqa, made = load(args.backend), tuple(map(int, args.gqa.split(","))), commit()
    cases: list[tuple[int, int, str, str, Worst]] = []
    for dim in map(int, args.dims.split(",")):
        new = [
            (dim, n, k, v, w) for k, v, n, w in measure(ops, args.k.split(","), args.v.split(","), dim, gqa, args.seed)
        ]
        cases += new
        print(f"head_dim {dim}: {len(new)} cases, worst {max(w.error for *_, w in new):.2e}", flush=True)
    head = {"machine": args.machine, "commit": made, "backend": args.backend, "seed": args.seed, "bound": BOUND}
    report = head | summary(cases)
    if args.out:
        args.out.write_text(json.dumps(report) + "\n")
    print(json.dumps(report))
    raise SystemExit(int(bool(report["wrong"] or report["above"])))


if __name__ == "__main__":
    main()
