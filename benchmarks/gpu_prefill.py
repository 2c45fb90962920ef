"""Attention of many rows on the GPU: microseconds and TFLOP/s, by type, shape and number of cells before the rows.

    python benchmarks/gpu_prefill.py                                 # 4,096 rows after 0 and 28,672 cells
    python benchmarks/gpu_prefill.py --types f16,turbo3 --rows 512 --before 0

One layer in a replayed CUDA graph: lifting, products and joining, from queries in the space of the keys on. FLOP are
those of the products that are not masked, 4 times dims for a query and a cell. Control: the best causal f16 kernel of
PyTorch in the same run. The last line is one JSON object; `--few` adds attention of a few rows (`attend_run`).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu import arena, replayed, stamp

from polykv.cache.codecs import codec
from polykv.fast.cuda import attend_config, attend_run, prefill_run
from polykv.fast.cuda.attend_plan import sets_of
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.prefill_config import config
from polykv.types import Segment, Segments

BLOCK = 64
SHAPES = ((32, 8, 128), (16, 8, 256), (16, 2, 512))
TYPES = "f16,q8_0,q8_0/turbo3,q4_0,turbo4,turbo3,turbo2"


@dataclass(frozen=True)
class Job:
    """Heads, K/V heads and head_dim; rows, the last of so many more cells."""

    heads: int
    n_kv: int
    dim: int
    rows: int
    before: int

    @property
    def cells(self) -> int:
        """All of them, in whole blocks."""
        return self.before + self.rows

    @property
    def flop(self) -> float:
        """Of both products, for cells that a row sees."""
        return 4.0 * self.heads * self.dim * (self.rows * self.before + self.rows * (self.rows + 1) / 2)

    def segments(self) -> Segments:
        """One sequence."""
        blocks, rows = np.arange(-(-self.cells // BLOCK), dtype=np.int32), np.arange(self.rows, dtype=np.int32)
        return Segments.of([Segment(blocks, 0, self.cells, rows)], rows + np.int32(self.before))


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--types", default=TYPES, help="K/V types, separated by commas")
    parser.add_argument("--rows", default="4096")
    parser.add_argument("--before", default="0,28672", help="cells before the rows")
    parser.add_argument("--shapes", default="0,1,2", help="which of 32/8/128, 16/8/256, 16/2/512")
    parser.add_argument("--few", action="store_true", help="attention of a few rows too")
    args = parser.parse_args()
    found = []
    for shape in (SHAPES[int(i)] for i in args.shapes.split(",")):
        for rows in map(int, args.rows.split(",")):
            for before in map(int, args.before.split(",")):
                found += measured(Job(*shape, rows, before), args.types.split(","), args.few)
    print(json.dumps({"stamp": stamp(), "prefill": found}))


def measured(job: Job, types: list[str], few: bool) -> list[dict[str, Any]]:
    """A row of figures for each type."""
    control = torch_us(job)
    rows = []
    for name in types:
        row = vars(job) | {"kv": name, "us": many_us(job, name), "torch_us": control}
        row["TFLOP/s"] = job.flop / row["us"] / 1e6
        if few:
            row["few_us"] = few_us(job, name)
        rows.append(row)
        ratio = f"{control / row['us']:5.2f} x PyTorch f16" if control else ""
        beside = f"few {row['few_us']:9.1f} us" if few else ""
        shape = f"{job.heads}/{job.n_kv}/{job.dim} {job.rows} rows after {job.before:,}"
        print(f"{shape:36} {name:12} {row['us']:9.1f} us {row['TFLOP/s']:6.1f} TFLOP/s {ratio} {beside}", flush=True)
        cupy().get_default_memory_pool().free_all_blocks()
    return rows


def sides(job: Job, name: str) -> tuple[Any, Any]:
    """Arenas of K and V."""
    depth = -(-job.cells // BLOCK) * BLOCK
    shape = job.heads, job.n_kv, job.dim
    k, v = (arena(codec(c), shape, depth) for c in (name.split("/") * 2)[:2])
    return k, v


def many_us(job: Job, name: str) -> float:
    """Microseconds of attention of many rows."""
    k, v = sides(job, name)
    made = config(job.dim, softcap=False, limit=device().shared)
    step = prefill_run.step_of(job.segments(), made, k, v, job.heads, 0)
    q = cupy().random.standard_normal((job.rows, job.heads, job.dim), dtype=np.float32)
    out = cupy().empty(q.shape, np.float32)
    how: dict[str, Any] = {"scale": job.dim**-0.5, "window": 0, "softcap": 0.0}
    return replayed([lambda: prefill_run.run(step, made, q, k, v, **how, out=out)] * 4)


def few_us(job: Job, name: str) -> float:
    """Microseconds of attention of a few rows, for as many."""
    k, v = sides(job, name)
    segments, q = job.segments(), cupy().random.standard_normal((job.rows, job.heads, job.dim), dtype=np.float32)
    sets = sets_of(segments, job.heads // job.n_kv)
    made = attend_config.config(kind_of(k.codec), kind_of(v.codec), job.dim, sets, softcap=False, limit=device().shared)
    step = attend_run.step_of(segments, made, job.heads, job.n_kv, 0)
    return replayed([lambda: attend_run.run(step, made, q, k, v, scale=job.dim**-0.5, window=0, softcap=0.0)] * 4)


def torch_us(job: Job) -> float | None:
    """Microseconds of PyTorch's best causal f16 attention; None where there is none."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right
    except ImportError:
        return None
    if job.dim > 256:
        return None
    q = torch.randn(1, job.heads, job.rows, job.dim, device="cuda", dtype=torch.float16)
    k, v = torch.randn(2, 1, job.n_kv, job.cells, job.dim, device="cuda", dtype=torch.float16)
    how: dict[str, Any] = (
        {"is_causal": True} if job.before == 0 else {"attn_mask": causal_lower_right(job.rows, job.cells)}
    )
    # Without grouped heads where a mask with an offset does not take them.
    wide = [x.repeat_interleave(job.heads // job.n_kv, 1) for x in (k, v)]
    times = []
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        for kv, grouped in (((k, v), True), (wide, False)):
            try:
                with sdpa_kernel(backend):
                    times.append(
                        timed(
                            torch,
                            lambda kv=kv, g=grouped: torch.nn.functional.scaled_dot_product_attention(
                                q, *kv, enable_gqa=g, **how
                            ),
                        )
                    )  # type: ignore[misc]
            except (RuntimeError, ValueError, TypeError):
                continue
    return min(times) if times else None


def timed(torch: Any, call: Any) -> float:
    """Microseconds of a call, the median of 20, four at a time."""
    call()
    times = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(4):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 4)
    return float(np.median(times)) * 1e3


if __name__ == "__main__":
    main()
