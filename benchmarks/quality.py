"""What each pair of K/V types costs in memory and in quality, on the two catalogue models.

    python benchmarks/quality.py                                 # both models, all pairs
    python benchmarks/quality.py --models smollm2 --tokens 256   # shorter
    python benchmarks/quality.py --tables results/quality.json   # the rows of the tables in README.md and docs

Quality is KL(p || q) in nats, p the next-token distribution with K and V in float32, q with the pair; mean and 99th
percentile over all positions of the beginning of the shipped document, read through the cache, so every token sees its
own key compressed. Same top: how often both distributions have the same likeliest token. Activations are float32:
nothing but the cache differs. Bytes per token are those of the arrays, K and V of all layers. The last line is JSON.
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
from polykv.cache.codecs import CODECS, parse_tiers
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.catalogue import resolve
from polykv.config import CacheConfig
from polykv.model.loader import Model, load_model
from polykv.model.runner import Logits, Runner
from polykv.text.tokenizer import Tokenizer
from polykv.types import F32, Activations

TRUTH = "f32"
# The types that the measured backend runs at the head_dims of the catalogue.
NAMES = [
    name for name, c in CODECS.items() if name != TRUTH and operations.load("cpu").supports_kv(c, c, 64, 64) is None
]
# Rows of logits that are held at a time: 32 MB each for a vocabulary of 262,144.
CHUNK = 32


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--models", default="smollm2,gemma3")
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
        pairs = measure(model, ids, [f"{k}/{v}" for k, v in product(NAMES, NAMES)])
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
    sides = {kv: Sequence(pool(model, kv, len(ids))) for kv in dict.fromkeys([TRUTH, *pairs])}
    runners = {kv: Runner(s.pool.ops, model, s.pool, Activations.F32) for kv, s in sides.items()}
    kl: dict[str, list[np.ndarray]] = {kv: [] for kv in pairs}
    same: dict[str, list[np.ndarray]] = {kv: [] for kv in pairs}
    for at in range(0, len(ids), CHUNK):
        part = ids[at : at + CHUNK]
        truth = log_softmax(runners[TRUTH].step([(sides[TRUTH], part)], Logits.ALL))
        for kv in pairs:
            mine = log_softmax(runners[kv].step([(sides[kv], part)], Logits.ALL))
            kl[kv].append(divergence(truth, mine))
            same[kv].append(truth.argmax(axis=1) == mine.argmax(axis=1))
    f16 = bytes_per_token(pool(model, "f16", 1))
    return {
        kv: {
            "bytes_per_token": bytes_per_token(sides[kv].pool),
            "times_smaller_than_f16": f16 / bytes_per_token(sides[kv].pool),
            "kl_mean": float(np.concatenate(kl[kv]).mean()),
            "kl_p99": float(np.quantile(np.concatenate(kl[kv]), 0.99)),
            "same_top": float(np.concatenate(same[kv]).mean()),
        }
        for kv in pairs
    }


def pool(model: Model, kv: str, tokens: int) -> KVPool:
    """An empty cache of one pair of types."""
    config = CacheConfig(parse_tiers(kv, len(model.config.layers)))
    return KVPool(operations.load("cpu"), model.config, config, fingerprint=model.fingerprint, max_tokens=tokens)


def bytes_per_token(cache: KVPool) -> float:
    """Of K and V of all layers, from one block of the arrays."""
    return sum(cache.block_nbytes(g.index) for g in cache.groups) / cache.block_size


def log_softmax(logits: F32) -> F32:
    """log p of every row of logits; sums in float64."""
    y = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(y).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(y - np.log(total).astype(np.float32), np.float32)


def divergence(p: F32, q: F32) -> np.ndarray:
    """KL(p || q) of every row, from log-probabilities; sums in float64. Rounding may leave a few 1e-7, also below 0.

    >>> p = np.log(np.array([[0.5, 0.5]], np.float32))
    >>> round(float(divergence(p, np.log(np.array([[0.25, 0.75]], np.float32)))[0]), 4)
    0.1438
    """
    return np.asarray((np.exp(p) * (p - q)).sum(axis=1, dtype=np.float64))


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
