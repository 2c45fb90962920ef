"""Cases of the composites: attention block, MLP block, head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from case_attention import Plan, Seq, layer
from case_base import Arrays, Case, normal, poison, seeded, weight

from polykv.cache.codecs import parse_tier
from polykv.ops import Ops
from polykv.types import (
    Activations,
    Angles,
    AttentionWeights,
    Equalizer,
    Glu,
    HeadWeights,
    Layer,
    MlpWeights,
    Stack,
    WeightType,
)


@dataclass(frozen=True)
class Shape:
    """One layer: a llama-like one has neither q/k norms nor post norms, a gemma-like one has both. bias: of q, k and v.
    equalized: channels of what is stored have factors, those of K alone ("k") or of K and V ("kv")."""

    name: str
    embd: int
    n_heads: int
    n_kv: int
    head_dim: int
    ffn: int
    gemma: bool
    kinds: tuple[WeightType, WeightType]
    window: int = 0
    softcap: float = 0.0
    bias: bool = False
    equalized: str = ""


LLAMA = Shape("llama", 576, 9, 3, 64, 1536, False, (WeightType.Q4_1, WeightType.Q8_0))
GEMMA = Shape("gemma", 640, 4, 1, 256, 2048, True, (WeightType.Q5_0, WeightType.Q8_0), window=100)
KQUANT = Shape("kquant", 256, 4, 4, 100, 512, False, (WeightType.Q4_K, WeightType.F16), softcap=20.0)
QWEN = Shape("qwen", 256, 4, 2, 64, 512, False, (WeightType.Q4_0, WeightType.Q8_0), bias=True, equalized="kv")
EQUAL = Shape("equal", 256, 4, 1, 72, 512, True, (WeightType.Q5_0, WeightType.Q8_0), window=100, equalized="k")
SHAPES = (LLAMA, GEMMA, KQUANT, QWEN, EQUAL)

# Rounding to int8 is a step function: where two backends differ in the last bit just at a step, one code of an
# activation or of a key differs, and with it the row (measured: 1e-3, when it hits an early V that all later rows
# read). Rounding all activations moves a result by 9e-3, so this still tells right activations from wrong ones.
STEP = 3e-3
OF_ITS_CLASS = -1.0
PLANS = {
    "decode": Plan((Seq(100, 1),)),
    "agents": Plan((Seq(129, 1), Seq(150, 1), Seq(190, 5)), shared=128),
    "prefill": Plan((Seq(63, 63),)),
}


def cases() -> Iterator[Case]:
    for shape in SHAPES:
        for activations in Activations:
            for plan in PLANS:
                for tier in ("f32", "q8_0/turbo3"):
                    yield attention_block(shape, plan, tier, activations)
                yield attention_block(shape, plan, "f16", activations)
            for n in (1, 8, 63):
                yield mlp_block(shape, n, activations)
            yield head(shape, 1, 320, activations)
            yield head(shape, 5, 1000, activations)
    for plan in PLANS:
        yield layers(plan, ("f32", "f16"))
        yield layers(plan, ("f16", "f16"))


def attention_weights(shape: Shape) -> AttentionWeights:
    """Weights of an object of their own, of arrays that are made once."""
    return replace(_attention_weights(shape))


@lru_cache(maxsize=8)
def _attention_weights(shape: Shape) -> AttentionWeights:
    rng = seeded(shape.name)
    a, b = shape.kinds
    width, narrow = shape.n_heads * shape.head_dim, shape.n_kv * shape.head_dim
    post = 1 + normal(rng, shape.embd, scale=0.1) if shape.gemma else None
    qn, kn = (1 + normal(rng, shape.head_dim, scale=0.1) if shape.gemma else None for _ in range(2))
    # wo of a type with blocks of 256 needs a width that they divide.
    wo = a if width % 256 == 0 or a != WeightType.Q4_K else b
    return AttentionWeights(
        norm=1 + normal(rng, shape.embd, scale=0.1),
        wq=weight(rng, a, width, shape.embd),
        wk=weight(rng, b, narrow, shape.embd),
        wv=weight(rng, a, narrow, shape.embd),
        wo=weight(rng, wo, shape.embd, width),
        q_norm=qn,
        k_norm=kn,
        post_norm=post,
        n_heads=shape.n_heads,
        n_kv=shape.n_kv,
        head_dim=shape.head_dim,
        scale=shape.head_dim**-0.5,
        window=shape.window,
        softcap=shape.softcap,
        eps=1e-6,
        q_bias=normal(rng, width) if shape.bias else None,
        k_bias=normal(rng, narrow) if shape.bias else None,
        v_bias=normal(rng, narrow) if shape.bias else None,
        equalizer=equalizer(rng, shape) if shape.equalized else Equalizer(),
    )


def equalizer(rng: np.random.Generator, shape: Shape) -> Equalizer:
    k, v = (np.exp2(normal(rng, shape.n_kv, shape.head_dim).clip(-1, 1)) for _ in range(2))
    q, out = (np.repeat(1 / f, shape.n_heads // shape.n_kv, axis=0) for f in (k, v))
    return Equalizer(k, q, *((v, out) if shape.equalized == "kv" else ()))


def mlp_weights(shape: Shape) -> MlpWeights:
    """The same for the MLP."""
    return replace(_mlp_weights(shape))


@lru_cache(maxsize=8)
def _mlp_weights(shape: Shape) -> MlpWeights:
    rng = seeded(shape.name + "mlp")
    a, b = shape.kinds
    return MlpWeights(
        norm=1 + normal(rng, shape.embd, scale=0.1),
        gate=weight(rng, a, shape.ffn, shape.embd),
        up=weight(rng, a, shape.ffn, shape.embd),
        down=weight(rng, b, shape.embd, shape.ffn),
        post_norm=1 + normal(rng, shape.embd, scale=0.1) if shape.gemma else None,
        glu=Glu.GELU_TANH if shape.gemma else Glu.SILU,
        eps=1e-6,
    )


def angles_of(positions: np.ndarray, shape: Shape) -> Angles:
    half = shape.head_dim // 2
    t = positions[:, None] * 1e4 ** (-np.arange(half) / half)
    return Angles(np.cos(t).astype(np.float32), np.sin(t).astype(np.float32), not shape.gemma)


def attention_block(shape: Shape, plan: str, tier: str, activations: Activations) -> Case:
    name = f"{shape.name}-{plan}-{tier.replace('/', '+')}-{activations.name}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        p = PLANS[plan]
        segments, slots, n_blocks = p.build(name)
        w = attention_weights(shape)
        kv = layer(ops, tier, n_blocks, shape.n_kv, shape.head_dim, p.size)
        h0 = normal(seeded(name), p.n_rows, shape.embd)
        angles = angles_of(segments.positions, shape)

        def call() -> Arrays:
            h = h0.copy()
            ops.attention_block(h, w, kv, angles, segments, slots, activations=activations)
            # The branch alone: h itself would hide its error.
            return (h - h0,)

        return call

    exact, pair = tier == "f32" and activations == Activations.F32, parse_tier(tier)
    storage = pair.k, pair.v, shape.head_dim, PLANS[plan].size
    return Case("attention_block", name, prepare, tolerance=OF_ITS_CLASS if exact else STEP, storage=storage)


def stack_of(ops: Ops, n_blocks: tuple[int, int], size: int, tiers: tuple[str, str]) -> Stack:
    """Four layers of two shapes and tiers, in two cache groups and with two kinds of angles, as in models that mix
    windows; those of one shape have their own weights."""
    made = []
    for i in range(4):
        other = i % 2
        shape = replace(GEMMA, name=f"layer {i}", window=100 * other)
        kv = layer(ops, tiers[other], n_blocks[other], shape.n_kv, shape.head_dim, size)
        made.append(Layer(attention_weights(shape), mlp_weights(shape), kv, other, other))
    return Stack(tuple(made))


def layers(plan: str, tiers: tuple[str, str]) -> Case:
    """Where nothing is rounded: four layers of random weights would make much of every step in an activation. That
    rounded ones are the same as block by block is tested bit for bit (tests/fast/test_layers.py)."""
    name = f"stack-{plan}" + f"-{tiers[0]}" * (tiers[0] != "f32")

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        p = PLANS[plan]
        built = [p.build(f"{name}{group}") for group in range(2)]
        segments, slots = [b[0] for b in built], [b[1] for b in built]
        stack = stack_of(ops, (built[0][2], built[1][2]), p.size, tiers)
        h0 = normal(seeded(name), p.n_rows, GEMMA.embd)
        turns = [angles_of(segments[0].positions * (1 + 2 * rope), GEMMA) for rope in range(2)]

        def call() -> Arrays:
            h = h0.copy()
            ops.layers(h, stack, turns, segments, slots, activations=Activations.F32)
            return (h - h0,)

        return call

    pair = parse_tier(tiers[0])
    return Case("layers", name, prepare, storage=(pair.k, pair.v, GEMMA.head_dim, PLANS[plan].size))


def mlp_block(shape: Shape, n: int, activations: Activations) -> Case:
    name = f"{shape.name}-{n}-{activations.name}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        w = mlp_weights(shape)
        h0 = normal(seeded(name), n, shape.embd)

        def call() -> Arrays:
            h = h0.copy()
            ops.mlp_block(h, w, activations=activations)
            return (h - h0,)

        return call

    return Case("mlp_block", name, prepare, tolerance=OF_ITS_CLASS if activations == Activations.F32 else STEP)


def head(shape: Shape, n: int, vocab: int, activations: Activations) -> Case:
    name = f"{shape.name}-{n}x{vocab}-{activations.name}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        w = HeadWeights(
            1 + normal(rng, shape.embd, scale=0.1), weight(rng, shape.kinds[1], vocab, shape.embd), shape.softcap, 1e-6
        )
        h = normal(rng, n, shape.embd)
        return lambda: (ops.head(h, w, activations=activations, out=poison(n, vocab)),)

    return Case("head", name, prepare, tolerance=OF_ITS_CLASS if activations == Activations.F32 else STEP)
