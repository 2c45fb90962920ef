"""Attention of the cpu backend on stored codes, against our own f16/f16 and against NumPy float32, in one run.

    python benchmarks/attention.py [--threads N] [--shapes smollm2,gemma3] [--depths 0,1000,8000] [--seconds 0.2]
        [--layers 1]
    python benchmarks/attention.py --types q8_0,turbo4,turbo3_tcq      # each as K and as V
    python benchmarks/attention.py --pairs q8_0/turbo4,turbo4/turbo3
    python benchmarks/attention.py --layers 30                         # one layer after the other, as a model has them

Per shape (one layer), K/V pair and depth: microseconds to encode a token's K and V, 64 tokens at a time; milliseconds
for one decode row, for 8 agents that share the cells, and 512 rows of prefill in 10^9 multiply-adds per second; ratios
to f16/f16 and to NumPy (float32 keys and values in memory, one matrix product per kv head each way). One layer that is
read again and again may stay in the cache of the processor; those of a model do not, and are read from memory: times
are then means of so many layers (prefill, which computes rather than reads, still takes one). The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from polykv.cache.codecs import codec
from polykv.config import CacheConfig
from polykv.fast.cpu import attend, kv_append, team
from polykv.measure.speed import one_sequence, store
from polykv.measure.timing import seconds
from polykv.ops import load
from polykv.types import F32, LayerKV, Segments, Slots

# heads, kv heads, head_dim
SHAPES = {"smollm2": (9, 3, 64), "gemma3": (4, 1, 256), "llama8b": (32, 8, 128)}
PAIRS = ("f16/f16", "q8_0/turbo3", "q8_0/q8_0", "q4_0/q4_0", "turbo3/turbo3")
BLOCK, AGENTS, PREFILL = CacheConfig.block_size, 8, 512
# Tokens that are encoded at a time.
ROWS = 64


def append(kv: LayerKV, k: F32, v: F32) -> None:
    """Write keys and values [T, G, D] to the first cells."""
    t = np.arange(len(k), dtype=np.int32)
    slots = Slots(t // BLOCK, t % BLOCK)
    kv_append(kv.k, k, slots)
    kv_append(kv.v, v, slots)


def dense(q: F32, k: F32, v: F32, scale: float) -> F32:
    """NumPy attention of q [R, H, D] over all of k, v [G, T, D]."""
    n_kv, _, dim = k.shape
    groups = np.ascontiguousarray(q.transpose(1, 0, 2)).reshape(n_kv, -1, dim)
    s = groups @ k.transpose(0, 2, 1) * np.float32(scale)
    s = np.exp(s - s.max(-1, keepdims=True))
    out: F32 = (s / s.sum(-1, keepdims=True)) @ v
    return out


def attend_all(q: F32, segments: Segments, layers: list[LayerKV], scale: float) -> None:
    """The same rows in one layer after the other."""
    for kv in layers:
        attend(q, segments, kv, scale=scale)


def measure(
    shape: tuple[int, int, int], depth: int, budget: float, pairs: list[str], layers: int
) -> dict[str, dict[str, float]]:
    """All pairs at one depth: milliseconds a layer and ratios."""
    heads, n_kv, dim = shape
    ops = load("cpu")
    rng, total = np.random.default_rng(0), depth + PREFILL
    q = rng.standard_normal((PREFILL, heads, dim), np.float32)
    k, v = rng.standard_normal((2, total, n_kv, dim), np.float32)
    kt, vt = (np.ascontiguousarray(x[: depth + 1].transpose(1, 0, 2)) for x in (k, v))
    scale = dim**-0.5
    numpy_ms = 1e3 * seconds(lambda: dense(q[:1], kt, vt, scale), budget)
    one = one_sequence(depth + 1, [depth])
    many = one_sequence(depth + 1, [depth] * AGENTS)
    chunk = one_sequence(total, range(depth, total))
    macs = 2 * heads * dim * PREFILL * (depth + PREFILL / 2)
    found: dict[str, dict[str, float]] = {}
    for pair in dict.fromkeys(["f16/f16", *pairs]):
        each = [store(ops, *map(codec, pair.split("/")), k, v) for _ in range(layers)]
        kv = each[0]
        encode_us = 1e6 / ROWS * seconds(lambda kv=kv: append(kv, k[:ROWS], v[:ROWS]), budget / 4)
        row_ms = 1e3 / layers * seconds(lambda each=each: attend_all(q[:1], one, each, scale), budget)
        agents_ms = 1e3 / layers * seconds(lambda each=each: attend_all(q[:AGENTS], many, each, scale), budget)
        prefill = seconds(lambda kv=kv: attend(q, chunk, kv, scale=scale), budget)
        control = found.get("f16/f16", {"row_ms": row_ms})["row_ms"]
        found[pair] = {
            "encode_us": round(encode_us, 3),
            "row_ms": round(row_ms, 4),
            "speed_vs_f16": round(control / row_ms, 3),
            "speed_vs_numpy": round(numpy_ms / row_ms, 3),
            "agents8_ms": round(agents_ms, 4),
            "agents8_vs_one": round(agents_ms / row_ms, 2),
            "prefill512_gmac_s": round(macs / prefill / 1e9, 1),
            "bytes_per_token": kv.k.block_nbytes / BLOCK + kv.v.block_nbytes / BLOCK,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=team.threads())
    parser.add_argument("--shapes", default="smollm2,gemma3")
    parser.add_argument("--depths", default="0,1000,8000")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--types", help="instead of pairs: types that are both K and V")
    args = parser.parse_args()
    team.set_threads(args.threads)
    pairs = [f"{name}/{name}" for name in args.types.split(",")] if args.types else args.pairs.split(",")
    report: dict[str, object] = {"threads": args.threads, "layers": args.layers}
    for name in args.shapes.split(","):
        for depth in map(int, args.depths.split(",")):
            found = measure(SHAPES[name], depth, args.seconds, pairs, args.layers)
            report[f"{name}/{depth}"] = found
            print(f"\n{name}, depth {depth}")
            print(f"{'K/V':16}" + "".join(f"{column:>18}" for column in next(iter(found.values()))))
            for pair, row in found.items():
                print(f"{pair:16}" + "".join(f"{value:18g}" for value in row.values()), flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
