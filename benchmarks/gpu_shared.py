"""Attention of rows that share a document on the GPU: microseconds when it is lifted for all of them, and read for
every eight queries.

    python benchmarks/gpu_shared.py                                  # 8, 16 and 32 rows, 131,072 cells
    python benchmarks/gpu_shared.py --types turbo3 --rows 32 --cells 1024,4096

One layer in a replayed CUDA graph, from queries in the space of the keys on, with the joining of partial results. FLOP
are those of the products, 4 times dims for a query and a cell. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np
from gpu import arena, replayed, stamp

from polykv.cache.codecs import codec
from polykv.fast.cuda import attend_run
from polykv.fast.cuda.attend_config import config
from polykv.fast.cuda.attend_plan import sets_of
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.levels import same_table
from polykv.fast.cuda.shared_config import shared_config
from polykv.fast.cuda.shared_plan import WARPGROUPS, Shared
from polykv.types import Segment, Segments

BLOCK = 64
TYPES = "f16,q8_0,q8_0/turbo3,q4_0,turbo4,turbo3,turbo2,turbo3_tcq"


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--types", default=TYPES, help="K/V types, separated by commas")
    parser.add_argument("--rows", default="8,16,32")
    parser.add_argument("--cells", default="131072")
    parser.add_argument("--heads", type=int, nargs=3, default=[32, 8, 128], help="query heads, K/V heads, dims")
    parser.add_argument("--warps", action="store_true", help="products of warps too, where the device has better ones")
    parser.add_argument("--stages", type=int, nargs=2, help="turns that are lifted, and under way")
    args = parser.parse_args()
    found = []
    for name in args.types.split(","):
        for cells in map(int, args.cells.split(",")):
            for rows in map(int, args.rows.split(",")):
                row = measured(args, name, rows, cells)
                print(row, flush=True)
                found.append(row)
            cupy().get_default_memory_pool().free_all_blocks()
    print(json.dumps({"stamp": stamp(), "heads": args.heads, "shared": found}))


def measured(args: argparse.Namespace, name: str, rows: int, cells: int) -> dict[str, Any]:
    """Microseconds of both ways."""
    heads, n_kv, dim = args.heads
    k, v = (arena(codec(c), (heads, n_kv, dim), cells) for c in (name.split("/") * 2)[:2])
    blocks, which = np.arange(cells // BLOCK, dtype=np.int32), np.arange(rows, dtype=np.int32)
    segments = Segments.of([Segment(blocks, 0, cells, which)], np.full(rows, cells, np.int32))
    q = cupy().random.standard_normal((rows, heads, dim), dtype=np.float32)
    kinds, one_table, limit = (kind_of(k.codec), kind_of(v.codec)), same_table(k.codec, v.codec), device().shared
    few = config(*kinds, dim, sets_of(segments, heads // n_kv), softcap=False, limit=limit, one_table=one_table)
    out = cupy().empty(q.shape, np.float32), cupy().empty(q.shape[:2], np.float32)

    def us(shared: Shared | None) -> float:
        step = attend_run.step_of(segments, few, heads, n_kv, 0, shared)
        how: dict[str, Any] = {"scale": dim**-0.5, "window": 0, "softcap": 0.0, "out": out}
        return replayed([lambda: attend_run.run(step, few, q, k, v, **how)] * 4)

    wgmma = device().capability == WARPGROUPS
    made = shared_config(*kinds, dim, softcap=False, limit=limit, one_table=one_table, wgmma=wgmma)
    assert made is not None, f"no attention of shared cells over {dim} dims"
    if args.stages:
        made = replace(made, stages=args.stages[0], raw=args.stages[1])
    found = {"kv": name, "rows": rows, "cells": cells, "us": us(Shared(made, np.ones(1, np.bool_)))}
    found["TFLOP/s"] = 4.0 * heads * dim * rows * cells / found["us"] / 1e6
    found["few_us"] = us(None)
    if args.warps:
        found["warps_us"] = us(Shared(replace(made, wgmma=False), np.ones(1, np.bool_)))
    return found


if __name__ == "__main__":
    main()
