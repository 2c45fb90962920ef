"""Writing K and V on the GPU: microseconds of kv_append, by type, shape and number of new rows.

    python benchmarks/gpu_kv.py [--types f16,turbo3] [--rows 1,32,4096]

One side of one layer or both, new rows in a row, in a replayed graph of 32 calls; a call of 4,096 rows is also given in
tokens a second through 32 layers. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import numpy as np
from gpu import SHAPES, replayed, stamp

from polykv.cache.codecs import codec
from polykv.fast.cuda import kv_alloc, kv_append
from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.kv_write import New, write_both
from polykv.types import LayerKV, Slots

BLOCK, CALLS = 128, 32
TYPES = "f16,q8_0,q4_0,q4_0+r,turbo4,turbo3,turbo2,turbo3_tcq,turbo2_tcq"


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--types", default=TYPES, help="K/V types, separated by commas")
    parser.add_argument("--rows", default="1,32,4096", help="new rows of a call, separated by commas")
    args = parser.parse_args()
    found = []
    for _, n_kv, dim in SHAPES:
        for name in args.types.split(","):
            for rows in map(int, args.rows.split(",")):
                for side in ("K", "V", "both"):
                    us = append_us(name, n_kv, dim, rows, side)
                    found.append({"type": name, "n_kv": n_kv, "dim": dim, "rows": rows, "side": side, "us": us})
                    speed = f"{rows / (us * 32) * 1e6:12,.0f} tokens/s" if rows > 1000 and side == "both" else ""
                    print(f"{n_kv} x {dim:3} {name:8} {side:4} {rows:5} rows {us:8.2f} us {speed}", flush=True)
    print(json.dumps({"stamp": stamp(), "kv_append": found}))


def append_us(name: str, n_kv: int, dim: int, rows: int, side: str) -> float:
    """Microseconds of a call, the median of replays; every call of a graph writes to another place."""
    shape = -(-rows * CALLS // BLOCK), n_kv, dim, BLOCK
    kv = LayerKV(kv_alloc(codec(name), *shape), kv_alloc(codec(name), *shape, values=True))
    x = cupy().random.standard_normal((rows, n_kv, dim), dtype=np.float32)
    cells = np.arange(rows * CALLS, dtype=np.int32).reshape(CALLS, rows)
    places = [Slots(asarray(c // BLOCK), asarray(c % BLOCK)) for c in cells]
    if side == "both":
        return replayed([partial(write_both, kv, New(x), New(x), p) for p in places])
    return replayed([partial(kv_append, kv.k if side == "K" else kv.v, x, p) for p in places])


if __name__ == "__main__":
    main()
