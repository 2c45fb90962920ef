"""Matrix products with packed weights on the GPU: bytes of W read a second, as a share of what a copy moves.

    python benchmarks/gpu_linear.py [--types Q4_0,Q8_0] [--shapes 14336x4096,4096x14336] [--rows 1,2,4,8,16,24,32]
                                    [--ahead 2]

Every kernel is first compared with a product of dequantized values; then replays of a graph are timed in which it runs
on copies of W that together are larger than the L2 cache. `tiles` runs on tensor cores (linear_tiles.cu), `dp4a` does
not (linear_few.cu); `many` is the way of more rows, dequantized tiles and cuBLAS. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from polykv.fast.cuda import dequantize, linear_int8
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.linear_int8 import product, quantize, takes_tiles
from polykv.fast.cuda.linear_many import many_f16
from polykv.fast.cuda.weights import DeviceTensor, matrix
from polykv.types import WEIGHT_BLOCK, QuantTensor, WeightType

# Bytes of all copies of a matrix together, and launches in a graph.
SPREAD = 400_000_000
LAUNCHES = 48
REPEATS = 25


def random_matrix(kind: WeightType, rows: int, cols: int, rng: np.random.Generator) -> DeviceTensor:
    """Random bytes; no scale is a denormal, infinite or NaN."""
    values, size = WEIGHT_BLOCK[kind]
    return matrix(QuantTensor(kind, rng.integers(1, 60, (rows, cols // values * size), dtype=np.uint8), cols))


def microseconds(calls: list[Callable[[], None]]) -> float:
    """Median time of one call, in a graph that runs LAUNCHES of them in turns."""
    cp = cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    # What the calls read was made on another stream.
    cp.cuda.Device().synchronize()
    with stream:
        for call in calls:
            call()
        stream.synchronize()
        stream.begin_capture()
        for i in range(LAUNCHES):
            calls[i % len(calls)]()
        graph = stream.end_capture()
        took = []
        for _ in range(REPEATS + 3):
            start, stop = cp.cuda.Event(), cp.cuda.Event()
            start.record(stream)
            graph.launch(stream)
            stop.record(stream)
            stop.synchronize()
            took.append(cp.cuda.get_elapsed_time(start, stop) * 1e3 / LAUNCHES)
    return statistics.median(took[3:])


def copy_rate() -> float:
    """Bytes read and written a second by a copy on the device."""
    cp = cupy()
    a = cp.zeros(1 << 30, np.uint8)
    b = cp.empty_like(a)

    def copy() -> None:
        cp.cuda.runtime.memcpyAsync(b.data.ptr, a.data.ptr, a.nbytes, 3, cp.cuda.get_current_stream().ptr)

    return 2 * a.nbytes / microseconds([copy]) * 1e6


def values_of(x: Any) -> Any:
    """The rounded rows as float64."""
    cp = cupy()
    blocks = x.reshape(x.shape[0], -1, 32)
    d = cp.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = (blocks * (1 / d)).astype(np.float64)
    return (cp.trunc(scaled + cp.copysign(0.5, scaled)) * d).reshape(x.shape)


def error(y: Any, x: Any, w: DeviceTensor) -> float:
    """RMS of the difference to a product in float64, of the first rows of W, relative to the RMS of that."""
    cp = cupy()
    some = min(w.rows, 512)
    want = values_of(x) @ dequantize(w, cp.arange(some, dtype=np.int32)).astype(np.float64).T
    return float(cp.sqrt(((y[:, :some] - want) ** 2).mean() / (want**2).mean()))


def measure(w: list[DeviceTensor], n: int, tiles: bool) -> tuple[float, float]:
    """Microseconds and error of the int8 kernels."""
    cp = cupy()
    x = cp.random.standard_normal((n, w[0].cols), dtype=np.float32)
    q, y = quantize(x, tiles), cp.full((n, w[0].rows), np.nan, np.float32)
    product(y, w[0], q)
    return microseconds([partial(product, y, m, q) for m in w]), error(y, x, w[0])


def measure_many(w: DeviceTensor, n: int) -> float:
    """Microseconds of dequantizing and cuBLAS, without a graph: the tiles are allocated."""
    cp = cupy()
    x, y = cp.random.standard_normal((n, w.cols), dtype=np.float32), cp.empty((n, w.rows), np.float32)
    took = []
    for _ in range(8):
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        many_f16(x, w, y)
        stop.record()
        stop.synchronize()
        took.append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
    return statistics.median(took[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default="Q4_0,Q8_0,Q4_K,Q5_K,Q6_K,Q4_1,Q5_0,IQ4_NL,IQ4_XS,Q2_K,Q3_K")
    parser.add_argument("--shapes", default="14336x4096,4096x14336,4096x4096")
    parser.add_argument("--rows", default="1,2,4,8,16,24,32")
    parser.add_argument("--ahead", type=int, default=linear_int8.AHEAD, help="pieces of a lane of linear_few.cu")
    args = parser.parse_args()
    linear_int8.AHEAD = args.ahead
    rate, rng = copy_rate(), np.random.default_rng(0)
    report: dict[str, object] = {"device": str(device()), "copy_tb_s": round(rate / 1e12, 3)}
    print(f"{device()}; a copy moves {rate / 1e12:.2f} TB/s")
    for shape in args.shapes.split(","):
        rows, cols = map(int, shape.split("x"))
        for kind in (WeightType[name] for name in args.types.split(",")):
            first = random_matrix(kind, rows, cols, rng)
            others = (DeviceTensor(kind, first.data.copy(), cols) for _ in range(SPREAD // first.nbytes))
            w = [first, *others]
            for n in map(int, args.rows.split(",")):
                for tiles in (True, False) if takes_tiles(first) else (False,):
                    if not tiles and n > 16:
                        continue
                    us, off = measure(w, n, tiles)
                    name, share = "tiles" if tiles else "dp4a", first.nbytes / us * 1e6 / rate
                    print(f"{shape:12} {kind.name:7} {name:5} R={n:<3} {us:8.2f} us  {share:6.1%}  error {off:.1e}")
                    report[f"{shape}/{kind.name}/{name}/{n}"] = {"us": round(us, 2), "share": round(share, 3)}
                    if not off < 1e-4:
                        raise SystemExit(f"wrong result: {shape} {kind.name} {name} R={n}: error {off}")
            us = measure_many(first, 4096)
            print(
                f"{shape:12} {kind.name:7} many  R=4096 {us:8.1f} us  {2 * rows * cols * 4096 / us / 1e6:6.0f} TFLOP/s"
            )
            report[f"{shape}/{kind.name}/many/4096"] = {"us": round(us, 1)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
