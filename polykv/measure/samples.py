"""Vectors that K/V types are measured on: [T, S, D], T consecutive tokens of S series of vectors of D values.

A series is what one kv head of one layer stores, so a type that looks at neighbouring tokens is measured as it is used.
Storage takes series for kv heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from polykv.cache.codecs import CODECS, parse_tiers
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config, check_kv, kv_reasons
from polykv.model.loader import Model
from polykv.model.runner import Logits, Runner
from polykv.ops import LoadedOps, load
from polykv.types import F32, Activations

TOKENS = 128
# About so many values of a sample: an NMSE is then known to one percent or better.
VALUES = 1 << 17
# Tokens that a model reads per step, and the type of K and V that is measured on.
STEP, EXACT = 64, "f32"


@dataclass(frozen=True, eq=False)
class Sample:
    """Named vectors x float32 [T, S, D]."""

    name: str
    x: F32

    @property
    def head_dim(self) -> int:
        return int(self.x.shape[2])


def synthetic(head_dim: int, seed: int = 0) -> list[Sample]:
    """Independent values of N(0, 1), and of Student's t with 4 degrees of freedom, which has outliers."""
    rng = np.random.default_rng(seed)
    shape = (TOKENS, max(1, -(-VALUES // (TOKENS * head_dim))), head_dim)
    return [
        Sample("N(0, 1)", rng.standard_normal(shape, np.float32)),
        Sample("t, 4 d.f.", rng.standard_t(4, shape).astype(np.float32)),
    ]


def rotated(sample: Sample) -> Sample:
    """The vectors after the rotation of the rotated types, zero-padded to whole groups first."""
    codec = next(c for c in CODECS.values() if c.rotated)
    g = codec.turn(sample.head_dim)
    padded = np.pad(sample.x, [(0, 0), (0, 0), (0, -sample.head_dim % g)])
    return Sample(f"{sample.name}, rotated", load("ref").fwht(padded, *codec.signs(g)))


def of_model(
    model: Model, ids: list[int], ops: LoadedOps, on_progress: Callable[[int, int], None] | None = None
) -> list[Sample]:
    """K (after rope) and V that the model has for the last tokens of `ids`, plain and rotated: four samples.

    From layers that have the head_dim of the first one; of all their kv heads so many, evenly spread, as give about
    VALUES values. on_progress(done, total) counts tokens.
    """
    held = keys_and_values(model, ids, ops, on_progress)
    dim = model.config.layers[0].head_dim
    found = []
    for name, side in (("K", [k for k, _ in held]), ("V", [v for _, v in held])):
        x = np.concatenate([a for a in side if a.shape[2] == dim], axis=1)
        wanted = min(x.shape[1], max(1, -(-VALUES // (len(x) * dim))))
        heads = np.linspace(0, x.shape[1] - 1, wanted).round().astype(np.intp)
        plain = Sample(name, np.ascontiguousarray(x[:, heads]))
        found += [plain, rotated(plain)]
    return found


@dataclass(frozen=True, eq=False)
class LayerVectors:
    """What meets in the attention of one layer: q float32 [T, H, D], k and v [T, G, D], q and k after rope."""

    q: F32
    k: F32
    v: F32


def of_layer(model: Model, ids: list[int], ops: LoadedOps, layer: int) -> LayerVectors:
    """Queries, keys and values of one layer for the last tokens of `ids`; runs the layers up to it."""
    layers, attention = model.config.layers[: layer + 1], model.attention[: layer + 1]
    cut = replace(model, config=replace(model.config, layers=layers), attention=attention)
    # Queries are what a layer writes to the cache when the matrix of its queries stands in the place of that of keys.
    config, w = layers[layer], attention[layer]
    config = replace(config, n_kv=config.n_heads)
    bias = w.q_bias
    w = replace(w, wk=w.wq, wv=w.wq, k_norm=w.q_norm, k_bias=bias, v_bias=bias, n_kv=w.n_heads)
    asking = replace(
        cut, config=replace(cut.config, layers=(*layers[:layer], config)), attention=(*attention[:layer], w)
    )
    return LayerVectors(keys_and_values(asking, ids, ops, None)[layer][0], *keys_and_values(cut, ids, ops, None)[layer])


def exact_limits(model: Model, ops: LoadedOps) -> list[str]:
    """Why the backend cannot keep K and V of the model exact; empty = it can."""
    return kv_reasons(ops, model.config, parse_tiers(EXACT, len(model.config.layers)), ops.preferred_block())


def keys_and_values(
    model: Model, ids: list[int], ops: LoadedOps, on_progress: Callable[[int, int], None] | None
) -> list[tuple[F32, F32]]:
    """K and V [T, G, D] of every layer, exact: the last TOKENS tokens that all layers still hold.

    Raises UnsupportedError where the backend cannot keep them so.
    """
    config = cache_config(ops, parse_tiers(EXACT, len(model.config.layers)))
    check_kv(ops, model.config, config.tiers, config.block_size)
    pool = KVPool(ops, model.config, config, fingerprint=model.fingerprint, max_tokens=len(ids))
    runner, sequence = Runner(ops, model, pool, Activations.F32), Sequence(pool)
    for at in range(0, len(ids), STEP):
        runner.step([(sequence, ids[at : at + STEP])], Logits.NONE)
        if on_progress:
            on_progress(min(at + STEP, len(ids)), len(ids))
    size = pool.block_size
    start = max(len(ids) - TOKENS, *(table.first * size for table in sequence.block_tables), 0)
    held = []
    for i in range(len(model.config.layers)):
        blocks = sequence.block_tables[pool.group_of(i)].ids[start // size :]
        kv = pool.layer(i)
        k, v = (ops.fetch(ops.kv_read(a, blocks)).reshape(-1, a.n_kv, a.head_dim) for a in (kv.k, kv.v))
        held.append((k[start % size :][: len(ids) - start], v[start % size :][: len(ids) - start]))
    return held
