"""Quality of K/V types far into a text: windows of 2,048 tokens, every position counted.

    python benchmarks/windows.py --text FILE --out results/windows.json               # both models, four windows
    python benchmarks/windows.py --text FILE --out FILE --kv turbo4 --kv turbo2       # these only
    python benchmarks/windows.py --table results/windows.json                         # the rows of docs/RESULTS.md

One cell is one model, one window and one pair, measured as in quality.py. Cells are written as they are done, and those
that the file has are not measured again, so a run can be stopped at any time. Each says which commit it is of.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from quality import TRUTH, commit, digits

from polykv import ops as operations
from polykv.catalogue import resolve
from polykv.measure.quality import bytes_per_token, compare, empty_pool
from polykv.memory import f16_nbytes
from polykv.model.loader import load_model
from polykv.text.tokenizer import Tokenizer

PLAIN = ("q8_0", "turbo8", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq", "q4_0", "q4_0+r")
MIXED = ("q8_0/turbo3", "turbo3/q8_0", "turbo4/turbo3", "turbo3/turbo4", "turbo3/turbo2", "turbo2/turbo3")
STAGED = ("turbo4+c/turbo3,sink=4", "turbo3+c/turbo3,sink=4", "turbo3_tcq+c/turbo3_tcq,sink=4")
# Pairs that run side by side: their caches and one more are in memory, and the truth is computed once for them.
TOGETHER = 4
Cell = dict[str, Any]


def main() -> None:
    """Parse arguments, measure what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--kv", action="append", help="measure this tier; may be given several times")
    parser.add_argument("--text", type=Path, help="the text, at least as long as all windows")
    parser.add_argument("--tokens", type=int, default=2048, help="length of a window")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--backend", default="cpu", choices=operations.BACKENDS)
    parser.add_argument("--machine", default=f"{platform.machine()}, {platform.system()}", help="how to call it")
    parser.add_argument("--out", type=Path, help="file that takes the cells")
    parser.add_argument("--table", type=Path, help="print the rows of a result for the documents, measure nothing")
    args = parser.parse_args()
    if args.table:
        print("\n".join(rows(json.loads(args.table.read_text())["cells"]).values()))
        return
    if args.text is None or args.out is None:
        parser.error("a text and a file for the cells are needed: --text FILE --out FILE")
    head = {"machine": args.machine, "backend": args.backend, "activations": "f32", "document": args.text.name}
    cells: list[Cell] = json.loads(args.out.read_text())["cells"] if args.out.exists() else []
    for cell in measure(args, [(c["model"], c["window"], c["kv"]) for c in cells]):
        cells.append(cell)
        args.out.write_text(json.dumps(head | {"cells": cells}, indent=0) + "\n")
        print(f"{cell['model']} {cell['window']} {cell['kv']:32} {cell['kl_mean']:.5f} {cell['bits_held']:.3f}")


def measure(args: argparse.Namespace, done: list[tuple[str, int, str]]) -> Iterator[Cell]:
    """Cells that are not done yet, window by window."""
    ops, text, made = operations.load(args.backend), args.text.read_text(encoding="utf-8"), commit()
    for name in args.models.split(","):
        model = load_model(resolve(name))
        ids = Tokenizer.from_gguf(model.gguf.metadata).encode(text)
        if len(ids) < args.tokens * args.windows:
            raise SystemExit(f"{args.text} has {len(ids)} tokens, {args.tokens * args.windows} are needed")
        half = empty_pool(model, "f16", args.tokens, ops)
        whole, held = bytes_per_token(half), f16_nbytes(half, args.tokens)
        pairs = args.kv or [*(f"{t}/{t}" for t in PLAIN), *MIXED, *STAGED]
        for window in range(args.windows):
            missing = [kv for kv in pairs if (name, window, kv) not in done]
            part = ids[window * args.tokens : (window + 1) * args.tokens]
            for some in (missing[i : i + TOGETHER] for i in range(0, len(missing), TOGETHER)):
                found = compare(model, part, some, ops=ops, truth=TRUTH)
                for kv in some:
                    q = found[kv]
                    yield {
                        "model": name,
                        "window": window,
                        "kv": kv,
                        "tokens": args.tokens,
                        "commit": made,
                        "bytes_per_token": q.bytes_per_token,
                        "bits": 16 * q.bytes_per_token / whole,
                        "bits_held": 16 * q.held / held,
                        "kl_mean": q.kl_mean,
                        "kl_p99": q.kl_p99,
                        "same_top": q.same_top,
                    }


def average(cells: list[Cell], model: str, kv: str, key: str) -> float:
    """Mean of a figure over the windows of one model and pair."""
    return float(np.mean([c[key] for c in cells if (c["model"], c["kv"]) == (model, kv)]))


def rows(cells: list[Cell]) -> dict[str, str]:
    """Markdown rows by pair, most bits first, of pairs that have all models and windows; every column has the models
    side by side, means over windows."""
    models, pairs, windows = (list(dict.fromkeys(c[key] for c in cells)) for key in ("model", "kv", "window"))
    pairs = [kv for kv in pairs if sum(c["kv"] == kv for c in cells) == len(models) * len(windows)]
    columns = (("bits", "{:.2f}".format), ("bits_held", "{:.2f}".format), ("kl_mean", digits), ("kl_p99", digits))
    form = (*columns, ("same_top", "{:.1%}".format))
    mean = {(m, kv, key): average(cells, m, kv, key) for m, kv, (key, _) in product(models, pairs, form)}
    pairs.sort(key=lambda kv: -mean[models[0], kv, "bits"])
    line = {kv: [" / ".join(show(mean[m, kv, key]) for m in models) for key, show in form] for kv in pairs}
    return {kv: f"| `{kv}` | {' | '.join(parts)} |" for kv, parts in line.items()}


if __name__ == "__main__":
    main()
