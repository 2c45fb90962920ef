"""Speed of the CUDA kernels on this GPU.

    python benchmarks/gpu.py attention                        # decode attention: shapes x depths x types
    python benchmarks/gpu.py attention --types f16,turbo3 --depths 32768 --json out.json

Every figure is the median of replays of a CUDA graph of several calls, each on K/V of its own, more than the
second-level cache holds. The control is the best f16 kernel of PyTorch in the same run (where PyTorch is installed and
has one), and a copy. Codes are random: what they say does not change how long they take, as long as scores look like
scores.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polykv.cache.codecs import CODECS
from polykv.fast.cuda import attend_run as attention
from polykv.fast.cuda.attend_config import config
from polykv.fast.cuda.attend_plan import long, sets_of
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.layout import kind_of, slices_of
from polykv.fast.cuda.levels import same_table
from polykv.types import Codec, KVArena, Segment, Segments

BLOCK, BIG, REPLAYS = 64, 300_000_000, 20
# heads, K/V heads, head_dim
SHAPES = ((32, 8, 128), (16, 8, 256), (16, 2, 512))
DEPTHS = (32_768, 131_072, 262_144)
TYPES = ("f16", "q8_0", "q8_0/turbo3", "q4_0", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq")


def main() -> None:
    """Parse arguments, run, print; the JSON goes to a file, or is the last line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=["attention"])
    parser.add_argument("--types", default=",".join(TYPES), help="K/V types, separated by commas")
    parser.add_argument("--depths", default=",".join(map(str, DEPTHS)))
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    found = {"stamp": stamp(), "copy TB/s": copy_speed(), "attention": attention_matrix(args)}
    text = json.dumps(found, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    else:
        print(json.dumps(found))


def stamp() -> dict[str, Any]:
    """The machine and the code."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, cwd=Path(__file__).parent, check=False).stdout.strip()
    return {"device": str(device()), "cuda": device().runtime, "commit": commit, "python": platform.python_version()}


def replayed(calls: list[Callable[[], object]]) -> float:
    """Microseconds of one of the calls, inside a graph of all of them: the median of the replays."""
    cp = cupy()
    cp.cuda.Device().synchronize()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        for call in calls:
            call()
        stream.synchronize()
        stream.begin_capture()
        for call in calls:
            call()
        graph = stream.end_capture()
        graph.launch(stream)
        times = []
        for _ in range(REPLAYS):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) / len(calls))
    return float(np.median(times)) * 1e3


def copy_speed() -> float:
    """TB/s, read and written, of a copy on the device."""
    cp = cupy()
    a = [cp.zeros(BIG, np.float32) for _ in range(2)]
    return 8 * BIG / replayed([lambda: cp.copyto(a[0], a[1])]) / 1e6


def attention_matrix(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each shape, depth and pair of types."""
    rows = []
    for shape in SHAPES:
        for depth in map(int, args.depths.split(",")):
            control = torch_us(shape, depth)
            base = f"{'/'.join(map(str, shape))} at {depth:,}"
            print(f"{base}: PyTorch f16 {f'{control:.1f} us' if control else 'has no kernel, or is not installed'}")
            for pair in args.types.split(","):
                case = Case.of(pair, shape, depth)
                us = case.us()
                row = {"shape": shape, "depth": depth, "kv": pair, "us": us, "torch_us": control, "bytes": case.bytes}
                rows.append(row | {"TB/s": case.bytes / us / 1e6, "defines": case.defines})
                ratio = f"{control / us:5.2f} x PyTorch f16" if control else ""
                print(f"  {pair:14} {us:7.1f} us  {case.bytes / us / 1e6:5.2f} TB/s  {ratio}", flush=True)
                del case
                cupy().get_default_memory_pool().free_all_blocks()
    return rows


@dataclass
class Case:
    """Calls of attention for one row, each on arenas of its own."""

    calls: list[Callable[[], object]]
    bytes: int
    defines: dict[str, Any]

    @staticmethod
    def of(pair: str, shape: tuple[int, int, int], depth: int) -> Case:
        cp, (heads, n_kv, dim) = cupy(), shape
        k, v = (CODECS[name] for name in (pair.split("/") * 2)[:2])
        blocks, rows = np.arange(depth // BLOCK, dtype=np.int32), np.zeros(1, np.int32)
        segments = Segments.of([Segment(blocks, 0, depth, rows)], np.array([depth - 1], np.int32))
        sets = sets_of(segments, heads // n_kv)
        how = {"one_table": same_table(k, v), "long": long(segments)}
        made = config(kind_of(k), kind_of(v), dim, sets, softcap=False, limit=device().shared, **how)
        step = attention.step_of(segments, made, heads, n_kv, 0)
        q = cp.random.standard_normal((1, heads, dim), dtype=np.float32)

        def call(arenas: tuple[KVArena, KVArena]) -> object:
            return attention.run(step, made, q, *arenas, scale=dim**-0.5, window=0, softcap=0.0)

        size = sum(n_kv * depth // 32 * kind_of(c).tile_bytes(made.width, made.slices) for c in (k, v))
        sets_of_arenas = [(arena(k, shape, depth), arena(v, shape, depth)) for _ in range(min(8, 1 + BIG // size))]
        # At least eight calls, so that starting a graph does not count.
        calls = [lambda a=a: call(a) for a in sets_of_arenas] * -(-8 // len(sets_of_arenas))  # type: ignore[misc]
        return Case(calls, size, dict(made.defines()))

    def us(self) -> float:
        """Microseconds of a call."""
        return replayed(self.calls)


def arena(codec: Codec, shape: tuple[int, int, int], depth: int) -> KVArena:
    """Random codes; norms and scales such that values are about 1."""
    cp, (_, n_kv, dim) = cupy(), shape
    kind, (width, slices) = kind_of(codec), slices_of(dim)
    size = kind.slice_bytes(width)
    halves = cp.random.randint(0, 1 << 16, (n_kv, depth // 32, slices, size // 2), dtype=np.uint16).view(np.float16)
    codes = width * 32 * kind.bits // 16
    scales = halves[..., codes:]
    if kind.bits == 16:
        halves[...] = cp.random.standard_normal(halves.shape, dtype=np.float32)
    elif scales.size:
        about = np.sqrt(codec.group(dim)) if kind.levels else 1 / (74 if kind.bits == 8 else 5)
        scales[...] = cp.random.random(scales.shape, dtype=np.float32) * about + about / 2
    data = halves.view(np.uint8).reshape(n_kv, depth // BLOCK, -1)
    return KVArena(codec, n_kv, dim, BLOCK, {"data": data.transpose(1, 0, 2)})


def torch_us(shape: tuple[int, int, int], depth: int) -> float | None:
    """Microseconds of PyTorch's best f16 attention; None where there is none but the one that computes all scores."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return None
    heads, n_kv, dim = shape
    if dim > 256:
        return None
    count = max(2, min(8, BIG // (4 * n_kv * depth * dim)))
    kv = [torch.randn(2, 1, n_kv, depth, dim, device="cuda", dtype=torch.float16) for _ in range(count)]
    q = torch.randn(1, heads, 1, dim, device="cuda", dtype=torch.float16)
    best = None
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        try:
            with sdpa_kernel(backend):
                us = torch_replayed(torch, q, kv)
        except RuntimeError:
            continue
        best = us if best is None else min(best, us)
    return best


def torch_replayed(torch: Any, q: Any, kv: list[Any]) -> float:
    """As `replayed`, with PyTorch's own graphs."""

    def calls() -> None:
        for i in range(8):
            k, v = kv[i % len(kv)]
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 8)
    return float(np.median(times)) * 1e3


if __name__ == "__main__":
    main()
