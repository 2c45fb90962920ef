"""Tokens of a real model on two backends: which of them differ, where one is clearly the most likely.

    python benchmarks/gpu_real.py --model smollm2 --kv f16 --kv q8_0/turbo3 --keep cpu.npz
    python benchmarks/gpu_real.py --model smollm2 --kv f16 --kv q8_0/turbo3 --backend cuda --against cpu.npz

The first backend reads prompts, continues each greedily, and keeps the tokens with the largest logits of every step.
The second one reads the same prompts and is given the same tokens, one at a time, so that a token that differs changes
none after it. margin: by how much the largest logit is above the next; below MARGIN rounding may decide. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import polykv
from polykv.cache.sequence import Sequence
from polykv.evals.corpora import corpus

# Margins above which tokens must be the same, and how many of the largest logits are kept.
MARGIN, TOP = 0.05, 64
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Prompts:
    """count prompts of so many tokens, from places of the default text, and tokens that follow each."""

    count: int = 20
    size: int = 150
    follow: int = 24

    def of(self, llm: polykv.LLM) -> list[list[int]]:
        ids = llm.tokenize(corpus("opticks"))
        head = [] if llm.tokenizer.bos is None else [llm.tokenizer.bos]
        step = (len(ids) - self.size) // self.count
        # Prompts of different lengths.
        return [head + ids[i * step : i * step + self.size - 3 * i] for i in range(self.count)]


def steps(llm: polykv.LLM, prompt: list[int], follow: int, given: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The TOP largest logits of every step: their tokens [follow, TOP], the largest first, and values. given: tokens to
    go on with, if not the most likely ones; of these TOP are looked at."""
    sequence, runner, ids = Sequence(llm.cache), llm.engine.runner, prompt
    tokens, values = np.empty((follow, TOP), np.int32), np.empty((follow, TOP), np.float32)
    for i in range(follow):
        logits = np.asarray(runner.step([(sequence, ids)])[0])
        tokens[i] = np.argsort(-logits, kind="stable")[:TOP]
        values[i] = logits[tokens[i] if given is None else given[i]]
        ids = [int(tokens[i, 0] if given is None else given[i, 0])]
    sequence.free()
    return tokens, values


def compared(tokens: np.ndarray, values: np.ndarray, mine: np.ndarray, of_mine: np.ndarray) -> dict[str, Any]:
    """How many tokens with a clear margin differ, and by how much logits do."""
    margin = values[..., 0] - values[..., 1]
    clear, differs = margin > MARGIN, mine[..., 0] != tokens[..., 0]
    off = np.abs(of_mine - values)
    return {
        "tokens": int(clear.sum()),
        "differ": int((clear & differs).sum()),
        "largest margin that differs": float(margin[differs].max()) if differs.any() else 0.0,
        "logits off, median": float(np.median(off)),
        "logits off, most": float(off.max()),
    }


def main() -> None:
    """Parse arguments, run, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kv", action="append")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--activations", default="f32", choices=["f32", "q8"])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()
    kept: Arrays = dict(np.load(args.against)) if args.against else {}
    made: Arrays = {}
    results = []
    for kv in args.kv or ["f16"]:
        llm = polykv.load(args.model, ctx=1024, kv=kv, backend=args.backend, activations=args.activations)
        prompts, found = Prompts(), []
        for i, prompt in enumerate(prompts.of(llm)):
            given = kept[f"{kv} tokens"][i] if args.against else None
            found.append(steps(llm, prompt, prompts.follow, given))
        tokens, values = (np.stack(x) for x in zip(*found, strict=True))
        made |= {f"{kv} tokens": tokens, f"{kv} values": values}
        if args.against:
            same = compared(kept[f"{kv} tokens"], kept[f"{kv} values"], tokens, values)
            results.append({"kv": kv, **same})
            print(results[-1], flush=True)
        del llm
    if args.keep:
        np.savez_compressed(args.keep, **made)  # type: ignore[arg-type]
    shared = {"model": args.model, "backend": args.backend, "activations": args.activations}
    print(json.dumps({**shared, "results": results}))


if __name__ == "__main__":
    main()
