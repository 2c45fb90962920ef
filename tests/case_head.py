"""Cases of greedy tokens: heads with and without a screen, odd sizes, and inputs that are hard on bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from case_base import Arrays, Case, normal, poison, seeded, weight

from polykv.ops import Ops
from polykv.types import F32, Activations, HeadWeights, WeightType

# (vocabulary, columns): no tile, one, several, one row more or less than that; and those of real models.
SIZES = ((1, 32), (7, 32), (8, 32), (9, 64), (64, 32), (1000, 576), (1001, 576), (1000, 640), (4096, 640))
HIDDEN = ("normal", "huge", "zeros", "tiny", "nan")
# One code of an activation at a step of its rounding (see `case_model.STEP`).
STEP = 3e-3


def cases() -> Iterator[Case]:
    for vocab, cols in SIZES:
        for n in (1, 2, 5):
            yield greedy(vocab, cols, n, "normal", WeightType.Q8_0)
    # Those with NaN are compared with all logits of the same backend (fast/test_greedy_screen.py): their results are
    # not the same everywhere.
    for kind in HIDDEN[1:-1]:
        yield greedy(1000, 640, 2, kind, WeightType.Q8_0)
    yield greedy(1000, 640, 1, "normal", WeightType.Q4_1)
    yield greedy(1000, 640, 1, "normal", WeightType.F16)
    yield greedy(1000, 640, 0, "normal", WeightType.Q8_0)
    yield greedy(1000, 640, 2, "normal", WeightType.Q8_0, softcap=20.0)
    for vocab, cols in SIZES:
        yield prepared(vocab, cols)


def hidden(name: str, kind: str, n: int, cols: int) -> F32:
    """Hidden rows [n, cols] of one kind."""
    h = normal(seeded(f"{name}-{kind}"), n, cols)
    if kind == "huge":
        h[:, cols // 3] = 3000
    elif kind == "zeros":
        h[...] = 0
    elif kind == "tiny":
        h *= np.float32(1e-38)
    elif kind == "nan":
        h[0, 5] = np.nan
    return h


def head_of(ops: Ops, name: str, kind: WeightType, vocab: int, cols: int, softcap: float = 0.0) -> HeadWeights:
    """A head, prepared as the backend likes it, for states whose columns differ in size."""
    rng = seeded(name)
    plain = HeadWeights(1 + normal(rng, cols, scale=0.1), weight(rng, kind, vocab, cols), softcap, 1e-6)
    inverse = np.exp2(rng.uniform(0, 4, cols)).astype(np.float32)
    return ops.prepare_head(plain, inverse, converted=lambda row: None)


def greedy(vocab: int, cols: int, n: int, kind: str, type_: WeightType, softcap: float = 0.0) -> Case:
    name = f"{type_.name}-{vocab}x{cols}-{n}-{kind}" + ("-capped" if softcap else "")

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        w, h = head_of(ops, name, type_, vocab, cols, softcap), hidden(name, kind, n, cols)

        def call() -> Arrays:
            found = ops.greedy(h, w, activations=Activations.Q8, room=poison(n, vocab))
            return found.ids, found.logits

        return call

    return Case("greedy", name, prepare, tolerance=STEP)


def prepared(vocab: int, cols: int) -> Case:
    name = f"{vocab}x{cols}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        def call() -> Arrays:
            w = head_of(ops, name, WeightType.Q8_0, vocab, cols)
            return ops.dequantize(w.out, None, out=poison(vocab, cols)), ops.embed(
                w.out, np.arange(0, vocab, 7, dtype=np.int32), 2.5
            )

        return call

    return Case("prepare_head", name, prepare)
