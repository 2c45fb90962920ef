"""What factors for channels (polykv calibrate) do to quality at equal bytes, on the two catalogue models.

    python benchmarks/calibration.py --score other.txt                    # both models; calibrates on the shipped text
    python benchmarks/calibration.py --calibrate a.txt --score b.txt --models smollm2 --tokens 512
    python benchmarks/calibration.py --table results/calibration.json     # the rows of docs/RESULTS.md

Quality is measured as in quality.py, on a text that the factors have not seen. Every pair of types runs without
factors, with those of the rule "innerq" and with "balanced" ones, of K alone; the last also with V. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.resources import files
from pathlib import Path
from typing import Any

from quality import TRUTH, commit, digits

from polykv import ops as operations
from polykv.cache.calibration import Calibration
from polykv.calibrator import calibrate
from polykv.catalogue import resolve
from polykv.measure.quality import Quality, compare
from polykv.model.loader import load_model
from polykv.text.tokenizer import Tokenizer

PAIRS = "q8_0/turbo3,turbo3/turbo3,turbo3/q8_0,q4_0/q4_0,q4_0/turbo3"
VARIANTS = ("none", "innerq", "balanced", "balanced K and V")


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--pairs", default=PAIRS)
    parser.add_argument("--kv", action="append", help="measure this tier only; may be given several times")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="sets of factors")
    parser.add_argument("--tokens", type=int, default=768, help="length of the excerpt that is scored")
    parser.add_argument("--calibrate", type=Path, help="text for the factors (default: the shipped document)")
    parser.add_argument("--calibration-tokens", type=int, default=4096)
    parser.add_argument("--score", type=Path, help="text that is scored (default: the shipped document)")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--machine", default=f"{platform.machine()}, {platform.system()}", help="how to call it")
    parser.add_argument("--table", type=Path, help="print the rows of a result, measure nothing")
    args = parser.parse_args()
    if args.table:
        print("\n".join(rows(json.loads(args.table.read_text()))))
        return
    if (args.calibrate or args.score) is None or args.calibrate == args.score:
        parser.error("the text that is scored must be another than the one that is calibrated with")
    seen, held_out = text_of(args.calibrate), text_of(args.score)
    result: dict[str, Any] = {"machine": args.machine, "commit": commit(), "backend": args.backend, "models": {}}
    result |= {"calibrated": name_of(args.calibrate), "scored": name_of(args.score), "activations": "f32"}
    for name in args.models.split(","):
        result["models"][name] = measure_model(name, seen, held_out, args)
    print(json.dumps(result))


def text_of(path: Path | None) -> str:
    if path is None:
        return (files("polykv.data") / "texts" / "jargon-file.txt").read_text(encoding="utf-8")
    return path.read_text(encoding="utf-8")


def name_of(path: Path | None) -> str:
    return "data/texts/jargon-file.txt" if path is None else path.name


def measure_model(name: str, seen: str, held_out: str, args: argparse.Namespace) -> dict[str, Any]:
    """Quality of every pair with every set of factors."""
    model = load_model(resolve(name))
    ids = Tokenizer.from_gguf(model.gguf.metadata).encode(held_out)[: args.tokens]
    most = args.calibration_tokens
    balanced = calibrate(name, seen, values=True, max_tokens=most)
    innerq = calibrate(name, seen, rule="innerq", max_tokens=most)
    factors = dict(
        zip(
            VARIANTS,
            (Calibration(), innerq.calibration, Calibration(balanced.calibration.k), balanced.calibration),
            strict=True,
        )
    )
    ops, pairs, found = operations.load(args.backend), args.kv or args.pairs.split(","), {}
    for variant, calibration in factors.items():
        if variant not in args.variants.split(","):
            continue
        found[variant] = compare(model, ids, pairs, ops=ops, truth=TRUTH, calibration=calibration)
        for kv, q in found[variant].items():
            print(f"{name:8} {kv:14} {variant:17} KL {q.kl_mean:.5f}  99 % {q.kl_p99:.4f}", flush=True)
    return {
        "name": model.config.name,
        "tokens": len(ids),
        "calibration_tokens": balanced.tokens,
        "predicted": {"innerq": innerq.k_noise, "balanced": balanced.k_noise, "balanced V": balanced.v_noise},
        "pairs": {kv: {variant: figures(q[kv]) for variant, q in found.items()} for kv in pairs},
    }


def figures(q: Quality) -> dict[str, float]:
    return {
        "bytes_per_token": q.bytes_per_token,
        "kl_mean": q.kl_mean,
        "kl_p99": q.kl_p99,
        "same_top": q.same_top,
    }


def rows(result: dict[str, Any]) -> list[str]:
    """Markdown rows: a pair and its factors; the models side by side."""
    models = [m["pairs"] for m in result["models"].values()]
    found = []
    for kv in models[0]:
        for variant in models[0][kv]:
            x = [m[kv][variant] for m in models]
            cells = [
                " / ".join(f"{v['bytes_per_token']:,.0f}" for v in x),
                " / ".join(digits(v["kl_mean"]) for v in x),
                " / ".join(digits(v["kl_p99"]) for v in x),
                " / ".join(f"{v['same_top']:.1%}" for v in x),
            ]
            found.append(f"| `{kv}` | {variant} | {' | '.join(cells)} |")
    return found


if __name__ == "__main__":
    main()
