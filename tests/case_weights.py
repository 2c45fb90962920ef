"""Cases of the operations on weights: dequantize, linear, embed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from case_base import FLOATS, Arrays, Case, normal, poison, seeded, weight

from polykv.ops import Ops
from polykv.types import WEIGHT_BLOCK, Activations, WeightType


def cases() -> Iterator[Case]:
    for kind in WeightType:
        block = WEIGHT_BLOCK[kind][0]
        for cols in (1, 63, 640) if kind in FLOATS else (block, 3 * block):
            yield dequantize(kind, 7, cols, None)
            yield dequantize(kind, 63, cols, [62, 0, 5, 5, 31])
            yield dequantize(kind, 5, cols, [])
            for activations in Activations:
                for n in (1, 3, 63):
                    yield linear(kind, n, 65, cols, activations)
        if kind not in FLOATS:
            # More than one chunk of 8 rows, more than one tile of 16 weight rows, columns in tiles of 128.
            yield linear(kind, 9, 33, 768, Activations.Q8)
        yield embed(kind, 3 * block if kind not in FLOATS else 63)
    yield dequantize(WeightType.Q4_1, 1000, 576, None)
    for activations in Activations:
        for kind in (WeightType.Q4_1, WeightType.Q8_0, WeightType.Q6_K, WeightType.F16):
            yield linear(kind, 1000, 33, 768, activations)
            yield linear(kind, 1, 1000, 1536, activations)
            yield linear(kind, 5, 1, 256, activations)
            yield linear(kind, 0, 5, 256, activations)
        yield linear(WeightType.Q4_1, 64, 1536, 576, activations)
        yield linear(WeightType.Q5_0, 8, 640, 640, activations)


def dequantize(kind: WeightType, rows: int, cols: int, pick: list[int] | None) -> Case:
    name = f"{kind.name}-{rows}x{cols}" + ("" if pick is None else f"-pick{len(pick)}")

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        w = weight(seeded(name), kind, rows, cols)
        index = None if pick is None else np.array(pick, np.int32)
        n = rows if pick is None else len(pick)
        return lambda: (ops.dequantize(w, index, out=poison(n, cols)), ops.dequantize(w, index))

    return Case("dequantize", name, prepare)


def linear(kind: WeightType, n: int, rows: int, cols: int, activations: Activations) -> Case:
    name = f"{kind.name}-{n}x{rows}x{cols}-{activations.name}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        w = weight(rng, kind, rows, cols)
        # Rows of different size: the rounding of one row must not see another.
        x = normal(rng, n, cols) * np.exp(rng.normal(size=(n, 1))).astype(np.float32)
        out = poison(n, rows)
        return lambda: (ops.linear(x, w, activations=activations, out=out),)

    return Case("linear", name, prepare)


def embed(kind: WeightType, cols: int) -> Case:
    def prepare(ops: Ops) -> Callable[[], Arrays]:
        w = weight(seeded(kind.name), kind, 40, cols)
        ids = np.array([39, 0, 7, 7, 20], np.int32)
        return lambda: (ops.embed(w, ids, 25.298221281347036), ops.embed(w, ids[:1], 1.0))

    return Case("embed", f"{kind.name}-{cols}", prepare)
