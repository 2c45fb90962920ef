"""Whole models on the GPU: decode at depths, prefill and agents, with random weights of any shape made on the spot.

    python benchmarks/gpu_model.py --shape llama8b --kv f16 --kv q8_0/turbo3 --kv turbo3 --depths 0 131072
    python benchmarks/gpu_model.py --shape llama8b --kv turbo3 --agents 32 --depths 131072

What is timed is `Runner.next_tokens`, the same call that `polykv generate` makes for every token, Python included: the
median of the steps. host: the part of a step that Python takes before the device has all of its work, while it computes
the step before. device: what a step takes that the device has whole before it begins; idle: the share of a step that is
not. Random weights give random tokens; speed depends on shapes alone. K/V of the depth are random vectors, coded as a
prefill codes them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from polykv.cache.codecs import parse_tiers
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config
from polykv.config import LayerConfig, Mixer, ModelConfig, RopeConfig
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.layers import prepared
from polykv.fast.cuda.weights import FIELDS, DeviceTensor
from polykv.model.runner import Logits, Runner
from polykv.ops import LoadedOps, load
from polykv.types import WEIGHT_BLOCK, Activations, AttentionWeights, Glu, HeadWeights, MlpWeights, Slots, WeightType

# Cells that are coded at a time.
PIECE = 8192
# A kernel that takes so many cycles.
PAUSE = 'extern "C" __global__ void pause(long long n) { const long long t = clock64(); while (clock64() - t < n); }'


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. windows: of the layers in turns, 0 = all keys; heads: (query heads, K/V heads, dims) of layers
    with all keys, and of those with a window."""

    layers: int
    embd: int
    ffn: int
    vocab: int
    heads: tuple[int, int, int]
    local: tuple[int, int, int] = (0, 0, 0)
    windows: tuple[int, ...] = (0,)


SHAPES = {
    "llama8b": Shape(32, 4096, 14336, 128256, (32, 8, 128)),
    # Sliding windows of 1,024 in five layers of six, heads of 512 dims in the sixth.
    "iswa": Shape(24, 2560, 10240, 262144, (8, 2, 512), (8, 2, 256), (1024, 1024, 1024, 1024, 1024, 0)),
}


def random_matrix(kind: WeightType, rows: int, cols: int, seed: int) -> DeviceTensor:
    """Random codes, scales such that values have a standard deviation near 1 / sqrt(cols)."""
    cp, size = cupy(), WEIGHT_BLOCK[kind][1]
    rng = cp.random.default_rng(seed)
    n = rows * cols // WEIGHT_BLOCK[kind][0]
    half = {WeightType.Q4_0: 1 / 4.6, WeightType.Q6_K: 1 / (18.5 * 16)}[kind] / cols**0.5
    fields = []
    for at, width in FIELDS[kind]:
        if width == 2:
            fields.append(cp.full(n, half, np.float16).view(np.uint8))
        elif kind is WeightType.Q6_K and at == 192:
            fields.append(cp.full(n * width, 16, np.uint8))
        else:
            fields.append(rng.integers(0, 256, n * width, dtype=np.uint8))
    return DeviceTensor(kind, cp.concatenate(fields).reshape(rows, n // rows * size), cols)


def make(shape: Shape) -> Any:
    """A model as `polykv.model.loader.Model` is one, as far as a runner looks."""
    layers, attention, mlp = [], [], []
    rng = np.random.default_rng(0)
    for i in range(shape.layers):
        window = shape.windows[i % len(shape.windows)]
        h, g, d = shape.local if window else shape.heads
        rope = RopeConfig(5e5, d, True)
        mixer = Mixer.SLIDING if window else Mixer.FULL
        layers.append(LayerConfig(mixer, h, g, d, shape.ffn, rope, d**-0.5, window))
        norm = 1 + 0.1 * rng.standard_normal(shape.embd, np.float32)

        def q4(rows: int, cols: int, part: int, layer: int = i) -> DeviceTensor:
            return random_matrix(WeightType.Q4_0, rows, cols, 8 * layer + part)

        qkv = q4(h * d, shape.embd, 0), q4(g * d, shape.embd, 1), q4(g * d, shape.embd, 2)
        constants: Any = (None, None, None, h, g, d, d**-0.5, window, 0.0, 1e-5)
        attention.append(AttentionWeights(norm, *qkv, q4(shape.embd, h * d, 3), *constants))
        ffn = q4(shape.ffn, shape.embd, 4), q4(shape.ffn, shape.embd, 5), q4(shape.embd, shape.ffn, 6)
        mlp.append(MlpWeights(norm, *ffn, None, Glu.SILU, 1e-5))
    # One rope for all layers of a head_dim.
    ropes = {layer.head_dim: layer.rope for layer in layers}
    layers = [replace(layer, rope=ropes[layer.head_dim]) for layer in layers]
    config = ModelConfig("llama", "random", shape.embd, shape.vocab, 1 << 20, 1e-5, tuple(layers))
    embedding = random_matrix(WeightType.Q4_0, shape.vocab, shape.embd, 1 << 20)
    out = random_matrix(WeightType.Q6_K, shape.vocab, shape.embd, 1 << 21)
    head = HeadWeights(np.ones(shape.embd, np.float32), out, 0.0, 1e-5)
    return SimpleNamespace(config=config, embedding=embedding, attention=tuple(attention), mlp=tuple(mlp), head=head)


def session(ops: LoadedOps, model: Any, kv: str, tokens: int) -> tuple[KVPool, Runner]:
    """A cache that can hold so many tokens, and a runner."""
    stored = cache_config(ops, parse_tiers(kv, len(model.config.layers)))
    pool = KVPool(ops, model.config, stored, fingerprint="random", max_tokens=tokens + 4 * stored.block_size)
    for g in range(len(pool.groups)):
        pool.reserve(g, pool.max_blocks(g))
    return pool, Runner(ops, model, pool, Activations.Q8)


def fill(ops: LoadedOps, pool: KVPool, depth: int) -> Sequence:
    """A sequence of `depth` tokens whose K and V are random vectors."""
    sequence, cp = Sequence(pool), cupy()
    for at in range(0, depth, PIECE):
        n = min(PIECE, depth - at)
        slots = sequence.extend([0] * n)
        for i, layer in enumerate(pool.model.layers):
            cells = slots[pool.group_of(i)]
            where = Slots(cp.asarray(cells.blocks), cp.asarray(cells.offsets))
            for seed, arena in enumerate((pool.layer(i).k, pool.layer(i).v)):
                x = cp.random.default_rng(2 * i + seed + at).standard_normal(
                    (n, layer.n_kv, layer.head_dim), np.float32
                )
                ops.kv_append(arena, x, where)
        sequence.commit()
    return sequence


def decode(ops: LoadedOps, runner: Runner, sequences: list[Sequence], steps: int) -> dict[str, float]:
    """Tokens a second of all sequences, milliseconds of a step, and of its host part."""
    batch = [(s, [1 + i]) for i, s in enumerate(sequences)]
    took = []
    for _ in range(steps + 4):
        began = time.perf_counter()
        ids = runner.next_tokens(batch, Logits.LAST, more=True)
        took.append(time.perf_counter() - began)
        batch = [(s, [int(i)]) for (s, _), i in zip(batch, ids, strict=True)]
    step, device_ms = 1e3 * float(np.median(took[4:])), device_part(runner, batch)
    found = {
        "tok_s": 1e3 * len(sequences) / step,
        "step_ms": step,
        "device_ms": device_ms,
        "idle": 1 - device_ms / step,
    }
    return {**found, "host_ms": 1e3 * host_part(ops, runner, batch)}


def device_part(runner: Runner, batch: list[tuple[Sequence, list[int]]]) -> float:
    """Milliseconds of a step behind a pause in which the host prepares all of it: a call of `next_tokens` begins the
    step after the one whose tokens it waits for."""
    cp = cupy()
    pause = cp.RawKernel(PAUSE, "pause")
    began, ended, found = cp.cuda.Event(), cp.cuda.Event(), list[float]()
    for _ in range(8):
        pause((1,), (1,), (np.int64(2e7),))
        began.record()
        ids = runner.next_tokens(batch, Logits.LAST, more=True)
        ended.record()
        batch = [(s, [int(i)]) for (s, _), i in zip(batch, ids, strict=True)]
        ended.synchronize()
        found.append(cp.cuda.get_elapsed_time(began, ended))
    return float(np.median(found))


def host_part(ops: LoadedOps, runner: Runner, batch: list[tuple[Sequence, list[int]]]) -> float:
    """Seconds until the device has all work of a step: the step without its last, waiting copy."""
    found = []
    for _ in range(5):
        ops.wait()
        began = time.perf_counter()
        runner.run(batch, Logits.LAST, lambda h: ops.head(h, runner.transformer._head, activations=Activations.Q8))
        found.append(time.perf_counter() - began)
    return float(np.median(found))


def prefill(ops: LoadedOps, runner: Runner, pool: KVPool, tokens: int, chunk: int) -> dict[str, float]:
    """Tokens a second of a prompt, the best of three."""
    best = float("inf")
    for _ in range(3):
        sequence = Sequence(pool)
        ops.wait()
        began = time.perf_counter()
        for at in range(0, tokens, chunk):
            last = at + chunk >= tokens
            runner.run([(sequence, [1] * min(chunk, tokens - at))], Logits.LAST if last else Logits.NONE, lambda h: h)
        ops.wait()
        best = min(best, time.perf_counter() - began)
        sequence.free()
    return {"tok_s": tokens / best, "ms": 1e3 * best}


def main() -> None:
    """Parse arguments, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--shape", default="llama8b", choices=SHAPES)
    parser.add_argument("--kv", action="append")
    parser.add_argument("--depths", type=int, nargs="+", default=[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[1])
    parser.add_argument("--prefill", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    ops, shape = load("cuda"), SHAPES[args.shape]
    model, results = make(shape), []
    print(f"{device()}; shape {args.shape}, Q4_0 weights, head Q6_K")
    for kv in args.kv or ["f16", "q8_0/turbo3", "turbo3"]:
        for depth in args.depths:
            pool, runner = session(ops, model, kv, depth + 256 * max(args.agents) + args.prefill)
            document = fill(ops, pool, depth)
            for agents in args.agents:
                sequences = [document.fork() for _ in range(agents)]
                found = decode(ops, runner, sequences, args.steps)
                graphs = prepared(runner.transformer.stack).graphs.counters
                results.append({"kv": kv, "depth": depth, "agents": agents, **found, "graphs": dict(graphs)})
                print(results[-1], flush=True)
                for s in sequences:
                    s.free()
            if args.prefill and depth == 0:
                results.append(
                    {"kv": kv, "prefill": args.prefill, **prefill(ops, runner, pool, args.prefill, args.chunk)}
                )
                print(results[-1], flush=True)
            document.free()
            del pool, runner, document
            cupy().get_default_memory_pool().free_all_blocks()
    if args.out:
        git = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(
            git, capture_output=True, text=True, cwd=Path(__file__).parent, check=False
        ).stdout.strip()
        made = {"device": str(device()), "commit": commit, "shape": args.shape, "results": results}
        args.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
