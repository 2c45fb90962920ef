"""What pairs of K/V types cost in memory and in quality, on the two catalogue models.

    python benchmarks/quality.py                                 # both models, all pairs of the usual types
    python benchmarks/quality.py --types f16,turbo4,turbo2       # all pairs of these
    python benchmarks/quality.py --models smollm2 --tokens 256   # shorter
    python benchmarks/quality.py --tables results/quality.json   # the rows of the tables in README.md and docs
    python benchmarks/quality.py --kv turbo4+c/turbo3,sink=4 --kv q4_0+r --tokens 2048 --windows 4 --text FILE

Quality is KL(p || q) as `polykv.measure.quality` defines it, p with K and V in float32; mean and 99th percentile over
all positions of the beginning of the shipped document. Bytes per token are those of codes; `bits_held` are the bits per
value of everything that a sequence holds at the end of an excerpt, exact cells included (docs/CENTERED.md).
--skip leaves the first positions of every excerpt out, --windows takes so many excerpts, one after the other. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Callable
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from polykv import ops as operations
from polykv.catalogue import resolve
from polykv.measure.quality import compare
from polykv.model.loader import Model, load_model
from polykv.text.tokenizer import Tokenizer

TRUTH, CONTROL = "f32", "f16/f16"
TYPES = ("f16", "q8_0", "q4_0", "turbo3")


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--types", default=",".join(TYPES), help="K/V types; all pairs of them are measured")
    parser.add_argument("--tokens", type=int, default=768, help="length of the excerpt")
    parser.add_argument("--skip", type=int, default=0, help="positions at the start that do not count")
    parser.add_argument("--windows", type=int, default=1, help="excerpts, one after the other")
    parser.add_argument("--kv", action="append", help="measure this tier only; may be given several times")
    parser.add_argument("--backend", default="cpu", choices=operations.BACKENDS)
    parser.add_argument("--text", type=Path, help="another text than the shipped document")
    parser.add_argument("--machine", default=f"{platform.machine()}, {platform.system()}", help="how to call it")
    parser.add_argument("--tables", type=Path, help="print the rows of a result for the documents, measure nothing")
    args = parser.parse_args()
    if args.tables:
        print("\n".join(rows(json.loads(args.tables.read_text())).values()))
        return
    text = (args.text or files("polykv.data") / "texts" / "jargon-file.txt").read_text(encoding="utf-8")
    result: dict[str, Any] = {
        "machine": args.machine,
        "commit": commit(),
        "backend": args.backend,
        "activations": "f32",
        "document": args.text.name if args.text else "data/texts/jargon-file.txt",
        "windows": args.windows,
        "skip": args.skip,
        "models": {},
    }
    for name in args.models.split(","):
        model = load_model(resolve(name))
        ids = Tokenizer.from_gguf(model.gguf.metadata).encode(text)[: args.tokens * args.windows]
        excerpts = [ids[i : i + args.tokens] for i in range(0, len(ids), args.tokens)]
        pairs = args.kv or [f"{k}/{v}" for k, v in product(args.types.split(","), repeat=2)]
        found = measure(model, excerpts, pairs, backend=args.backend, skip=args.skip)
        result["models"][name] = {"name": model.config.name, "tokens": len(ids), "pairs": found}
        show(name, result["models"][name])
    print(json.dumps(result))


def commit() -> str:
    """The short commit of this checkout, with a mark when files were changed."""
    line = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measure(
    model: Model, excerpts: list[list[int]], pairs: list[str], *, backend: str = "cpu", skip: int = 0
) -> dict[str, dict[str, float]]:
    """Bytes per token and quality of every pair, against float32, over all excerpts."""
    ops, tried = operations.load(backend), list(dict.fromkeys([CONTROL, *pairs]))
    each = [compare(model, ids, tried, ops=ops, truth=TRUTH) for ids in excerpts]
    f16 = each[0][CONTROL]
    result = {}
    for kv in pairs:
        runs = [e[kv] for e in each]
        kl, same = (np.concatenate([getattr(q, part)[skip:] for q in runs]) for part in ("kl", "same"))
        result[kv] = {
            "bytes_per_token": runs[0].bytes_per_token,
            "bits_held": 16 * sum(q.held for q in runs) / sum(e[CONTROL].held for e in each),
            "times_smaller_than_f16": f16.bytes_per_token / runs[0].bytes_per_token,
            "kl_mean": float(kl.mean()),
            "kl_p99": float(np.quantile(kl, 0.99)),
            "same_top": float(same.mean()),
        }
    return result


def rows(result: dict[str, Any]) -> dict[str, str]:
    """Markdown rows of all pairs, smallest cache last; every cell has the models side by side."""
    models = [m["pairs"] for m in result["models"].values()]
    pairs = sorted(models[0], key=lambda kv: -models[0][kv]["bytes_per_token"])
    columns: list[tuple[str, Callable[[float], str]]] = [
        ("bytes_per_token", "{:,.0f}".format),
        ("times_smaller_than_f16", "{:.1f}".format),
        ("kl_mean", digits),
        ("kl_p99", digits),
        ("same_top", "{:.1%}".format),
    ]
    cells = {kv: [" / ".join(form(m[kv][key]) for m in models) for key, form in columns] for kv in pairs}
    return {kv: f"| `{kv}` | {' | '.join(row)} |" for kv, row in cells.items()}


def digits(x: float) -> str:
    """Two significant digits without an exponent; what is below 0.00001 is rounding.

    >>> digits(0.02995), digits(0.0000363), digits(3e-7)
    ('0.030', '0.000036', '< 0.00001')
    """
    if x < 1e-5:
        return "< 0.00001"
    mantissa, exponent = f"{x:.1e}".split("e")
    return f"{float(mantissa) * 10.0 ** int(exponent):.{max(0, 1 - int(exponent))}f}"


def show(name: str, found: dict[str, Any]) -> None:
    """The table for people, smallest cache last."""
    print(f"\n{name}: {found['name']}, {found['tokens']} tokens")
    print(f"  {'K/V':15} {'bytes/token':>11} {'f16 / this':>10} {'mean KL':>9} {'99 % KL':>9} {'same top':>9}")
    for kv, x in sorted(found["pairs"].items(), key=lambda item: -item[1]["bytes_per_token"]):
        print(
            f"  {kv:15} {x['bytes_per_token']:11,.0f} {x['times_smaller_than_f16']:9.2f}x {x['kl_mean']:9.5f} "
            f"{x['kl_p99']:9.4f} {x['same_top']:9.1%}"
        )


if __name__ == "__main__":
    main()
