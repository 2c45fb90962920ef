"""What pairs of K/V types cost in memory and in quality, on the two catalogue models.

    python benchmarks/quality.py                                 # both models, all pairs of the usual types
    python benchmarks/quality.py --types f16,turbo4,turbo2       # all pairs of these
    python benchmarks/quality.py --models smollm2 --tokens 256   # shorter
    python benchmarks/quality.py --tables results/quality.json   # the rows of the tables in README.md and docs

Quality is KL(p || q) as `polykv.measure.quality` defines it, p with K and V in float32; mean and 99th percentile over
all positions of the beginning of the shipped document. The last line is JSON.
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
    parser.add_argument("--machine", default=f"{platform.machine()}, {platform.system()}", help="how to call it")
    parser.add_argument("--tables", type=Path, help="print the rows of a result for the documents, measure nothing")
    args = parser.parse_args()
    if args.tables:
        print("\n".join(rows(json.loads(args.tables.read_text())).values()))
        return
    text = (files("polykv.data") / "texts" / "jargon-file.txt").read_text(encoding="utf-8")
    result: dict[str, Any] = {
        "machine": args.machine,
        "commit": commit(),
        "backend": "cpu",
        "activations": "f32",
        "document": "data/texts/jargon-file.txt",
        "models": {},
    }
    for name in args.models.split(","):
        model = load_model(resolve(name))
        ids = Tokenizer.from_gguf(model.gguf.metadata).encode(text)[: args.tokens]
        pairs = measure(model, ids, [f"{k}/{v}" for k, v in product(args.types.split(","), repeat=2)])
        result["models"][name] = {"name": model.config.name, "tokens": len(ids), "pairs": pairs}
        show(name, result["models"][name])
    print(json.dumps(result))


def commit() -> str:
    """The short commit of this checkout, with a mark when files were changed."""
    line = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def measure(model: Model, ids: list[int], pairs: list[str]) -> dict[str, dict[str, float]]:
    """Bytes per token and quality of every pair, against float32."""
    found = compare(model, ids, list(dict.fromkeys([CONTROL, *pairs])), ops=operations.load("cpu"), truth=TRUTH)
    f16 = found[CONTROL].bytes_per_token
    return {
        kv: {
            "bytes_per_token": found[kv].bytes_per_token,
            "times_smaller_than_f16": f16 / found[kv].bytes_per_token,
            "kl_mean": found[kv].kl_mean,
            "kl_p99": found[kv].kl_p99,
            "same_top": found[kv].same_top,
        }
        for kv in pairs
    }


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
