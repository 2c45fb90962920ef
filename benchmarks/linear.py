"""Matrix products with packed weights, against np.dot of the same shape in float32, in one run.

    python benchmarks/linear.py [--threads N] [--rows 4096] [--cols 2048] [--seconds 0.3]

For every weight type and R = 1, 8, 512 activation rows: 10^9 multiply-adds per second and the ratio of np.dot's time to
ours. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import numpy as np

from polykv.fast.cpu import team
from polykv.fast.cpu.linear import linear
from polykv.fast.cpu.simd_core import level
from polykv.measure.timing import seconds
from polykv.types import WEIGHT_BLOCK, Activations, QuantTensor, WeightType

COUNTS = (1, 8, 512)


def random_weight(kind: WeightType, rows: int, cols: int, rng: np.random.Generator) -> QuantTensor:
    """Random bytes; speed does not depend on them, as long as no scale is a denormal."""
    values, size = WEIGHT_BLOCK[kind]
    data = rng.integers(1, 60, (rows, cols // values * size), dtype=np.uint8)
    return QuantTensor(kind, data, cols)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=team.threads())
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--cols", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=0.3)
    args = parser.parse_args()
    team.set_threads(args.threads)
    rng = np.random.default_rng(0)
    report: dict[str, object] = {"threads": args.threads, "level": level().name, "rows": args.rows, "cols": args.cols}
    dense = rng.standard_normal((args.rows, args.cols), np.float32)
    inputs = {n: rng.standard_normal((n, args.cols), np.float32) for n in COUNTS}
    base = {n: seconds(partial(np.dot, x, dense.T), args.seconds) for n, x in inputs.items()}
    size = args.rows * args.cols / 1e9
    print(f"{'type':8} {'mode':4} " + " ".join(f"{f'R={n}: G/s':>12} {'x np.dot':>9}" for n in COUNTS))
    print(f"{'np.dot':8} {'f32':4} " + " ".join(f"{size * n / base[n]:12.1f} {1:9.2f}" for n in COUNTS))
    for kind in WeightType:
        w = random_weight(kind, args.rows, args.cols, rng)
        for mode in Activations:
            took = {n: seconds(partial(linear, x, w, activations=mode), args.seconds) for n, x in inputs.items()}
            cells = " ".join(f"{size * n / took[n]:12.1f} {base[n] / took[n]:9.2f}" for n in COUNTS)
            print(f"{kind.name:8} {mode.name.lower():4} {cells}", flush=True)
            report[f"{kind.name}/{mode.name.lower()}"] = {
                f"r{n}": {"giga_per_s": round(size * n / took[n], 2), "vs_dot": round(base[n] / took[n], 3)}
                for n in COUNTS
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
