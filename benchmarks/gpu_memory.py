"""Memory of a session on the GPU: what was planned before anything was allocated, and what the driver says afterwards.

    python benchmarks/gpu_memory.py --shape llama8b --kv turbo3 --ctx 32768 --agents 4

Weights are zeros: memory depends on shapes alone. Prompts longer than a step are read, and all sequences generate. The
last line is one JSON object; `error` is (planned - taken) / taken, of all that the driver says is taken.
"""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from polykv.cache.codecs import parse_tiers
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config
from polykv.config import LayerConfig, Mixer, ModelConfig, RopeConfig
from polykv.device_plan import Session, reserve, settled
from polykv.model.runner import Logits, Runner
from polykv.ops import load
from polykv.types import (
    WEIGHT_BLOCK,
    Activations,
    AttentionWeights,
    Glu,
    HeadWeights,
    MlpWeights,
    ModelWeights,
    QuantTensor,
    WeightType,
)

# layers, width, width of the MLP, vocabulary, query heads, K/V heads, dims of a head
SHAPES = {"llama8b": (32, 4096, 14336, 128256, 32, 8, 128), "small": (4, 2048, 8192, 32000, 16, 4, 128)}
CHUNK = 512


def zeros(kind: WeightType, rows: int, cols: int) -> QuantTensor:
    """A matrix of the host."""
    values, size = WEIGHT_BLOCK[kind]
    return QuantTensor(kind, np.zeros((rows, cols // values * size), np.uint8), cols)


def model_of(shape: tuple[int, ...]) -> Any:
    """A model as `polykv.model.loader.Model` is one, as far as a session looks."""
    layers, embd, ffn, vocab, heads, n_kv, dim = shape
    norm, q4 = np.ones(embd, np.float32), WeightType.Q4_0
    config = LayerConfig(Mixer.FULL, heads, n_kv, dim, ffn, RopeConfig(5e5, dim, True), dim**-0.5, 0)
    attention, mlp = [], []
    for _ in range(layers):
        q, k, v = (zeros(q4, n * dim, embd) for n in (heads, n_kv, n_kv))
        rest = None, None, None, heads, n_kv, dim, dim**-0.5, 0, 0.0, 1e-5
        attention.append(AttentionWeights(norm, q, k, v, zeros(q4, embd, heads * dim), *rest))
        gate, up, down = zeros(q4, ffn, embd), zeros(q4, ffn, embd), zeros(q4, embd, ffn)
        mlp.append(MlpWeights(norm, gate, up, down, None, Glu.SILU, 1e-5))
    head = HeadWeights(norm, zeros(WeightType.Q6_K, vocab, embd), 0.0, 1e-5)
    weights = ModelWeights(zeros(q4, vocab, embd), tuple(attention), tuple(mlp), head)
    made = ModelConfig("llama", "zeros", embd, vocab, 1 << 20, 1e-5, (config,) * layers)
    parts = {"embedding": weights.embedding, "attention": weights.attention, "mlp": weights.mlp, "head": head}
    return SimpleNamespace(config=made, weights=weights, **parts)


def measured(shape: tuple[int, ...], kv: str, ctx: int, agents: int) -> dict[str, Any]:
    """Plan, run, and look."""
    ops, model = load("cuda"), model_of(shape)
    free, total = ops.memory() or (0, 0)
    tiers = parse_tiers(kv, shape[0])
    session, plan = settled(Session(ops, model, tiers, ctx, agents, chunk=CHUNK), fewer=False)
    assert plan is not None
    pool = KVPool(ops, model.config, cache_config(ops, tiers), fingerprint="zeros", max_tokens=agents * ctx)
    reserve(pool, session, plan)
    runner = Runner(ops, model, pool, Activations.Q8)
    sequences = [Sequence(pool) for _ in range(agents)]
    for s in sequences:
        for length in (CHUNK, CHUNK, 100):
            runner.step([(s, [1] * min(length, ctx // 4))])
    for _ in range(3):
        runner.next_tokens([(s, [2]) for s in sequences], Logits.LAST)
    runner.step([(sequences[0], [3])])
    held = ops.held(model.weights, runner.transformer.stack)
    planned = total - free + plan.nbytes
    return {
        "kv": kv,
        "ctx": ctx,
        "agents": agents,
        "before": total - free,
        "parts": plan.parts,
        "planned": planned,
        "held": {"K/V": pool.nbytes, **held},
        "grown": pool.counters["grown"],
        "error": (planned - held["driver"]) / held["driver"],
    }


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--shape", default="llama8b", choices=SHAPES)
    parser.add_argument("--kv", default="q8_0/turbo3")
    parser.add_argument("--ctx", type=int, default=32768)
    parser.add_argument("--agents", type=int, default=4)
    args = parser.parse_args()
    print(json.dumps(measured(SHAPES[args.shape], args.kv, args.ctx, args.agents)))


if __name__ == "__main__":
    main()
