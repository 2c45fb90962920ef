"""Cases of norms, rope, gates, the rotation, merging, penalties and sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from case_base import Arrays, Case, normal, poison, seeded

from polykv.ops import Ops
from polykv.types import Angles, Glu


def cases() -> Iterator[Case]:
    for shape in ((1, 576), (63, 640), (1000, 64), (5, 3, 256), (2, 1), (0, 8)):
        yield rms_norm(shape, 1e-6, 1.0)
    yield rms_norm((63, 640), 1e-6, 1e4)
    yield rms_norm((3, 64), 1e-5, 1e-4)
    for interleaved in (False, True):
        for n, heads, dim, n_rot in (
            (1, 3, 64, 64),
            (63, 4, 80, 32),
            (1000, 1, 256, 256),
            (7, 9, 16, 16),
            (0, 2, 64, 64),
        ):
            yield rope(n, heads, dim, n_rot, interleaved)
    for kind in Glu:
        for shape, scale in (((1, 1536), 1.0), ((63, 2048), 3.0), ((1000, 7), 1.0), ((3, 33), 1e4), ((0, 8), 1.0)):
            yield glu(kind, shape, scale)
    for g in (1, 2, 16, 64, 128, 512, 12, 20, 48, 72, 80, 112, 576):
        for inverse in (False, True):
            yield fwht(g, 3, 1.0, inverse)
            yield fwht(g, 63, 1e-37, inverse)
    for parts, n in ((1, 3), (2, 63), (5, 7), (3, 1000)):
        yield merge(parts, n)
    for n, vocab in ((1, 50), (5, 1000), (63, 320)):
        yield penalize(n, vocab)
        yield sample(n, vocab)
    yield sample(3, 49152)


def rms_norm(shape: tuple[int, ...], eps: float, scale: float) -> Case:
    name = f"{'x'.join(map(str, shape))}-scale{scale:g}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        x, w = normal(rng, *shape, scale=scale), normal(rng, shape[-1])
        return lambda: (ops.rms_norm(x, w, eps, out=poison(*shape)), ops.rms_norm(x, w, eps))

    return Case("rms_norm", name, prepare)


def rope(n: int, heads: int, dim: int, n_rot: int, interleaved: bool) -> Case:
    name = f"{n}x{heads}x{dim}-rot{n_rot}-{'interleaved' if interleaved else 'half'}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        x = normal(rng, n, heads, dim)
        t = rng.uniform(0, 1e4, (n, n_rot // 2))
        angles = Angles(np.cos(t).astype(np.float32), np.sin(t).astype(np.float32), interleaved)
        return lambda: (ops.rope(x, angles, out=poison(n, heads, dim)), ops.rope(x, angles))

    return Case("rope", name, prepare)


def glu(kind: Glu, shape: tuple[int, int], scale: float) -> Case:
    name = f"{kind.name}-{shape[0]}x{shape[1]}-scale{scale:g}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        gate, up = normal(rng, *shape, scale=scale), normal(rng, *shape)
        return lambda: (ops.glu(gate, up, kind, out=poison(*shape)), ops.glu(gate, up, kind))

    return Case("glu", name, prepare)


def fwht(g: int, n: int, scale: float, inverse: bool) -> Case:
    name = f"g{g}-{n}-scale{scale:g}-{'inverse' if inverse else 'forward'}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        x = normal(rng, n, 2, 3 * g, scale=scale)
        s1, s2 = (rng.choice(np.array([-1, 1], np.float32), g) for _ in range(2))
        return lambda: (ops.fwht(x, s1, s2, inverse=inverse, out=poison(n, 2, 3 * g)),)

    return Case("fwht", name, prepare)


def merge(parts: int, n: int) -> Case:
    name = f"{parts}-{n}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        outs, lses = normal(rng, parts, n, 3, 20), normal(rng, parts, n, 3, scale=20)
        lses[rng.random(lses.shape) < 0.3] = -np.inf
        # An empty part has out = 0 by the contract of attend.
        outs[np.isinf(lses)] = 0
        if parts and n > 1:
            outs[-1, 1, 0], lses[-1, 1, 0] = np.nan, np.nan
        return lambda: ops.merge(outs, lses, out=poison(n, 3, 20))

    return Case("merge", name, prepare)


def penalize(n: int, vocab: int) -> Case:
    name = f"{n}x{vocab}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        logits = normal(rng, n, vocab, scale=5)
        logits[:, 0] = 0
        recent = [rng.integers(0, vocab, rng.integers(0, 40)).astype(np.int32) for _ in range(n)]
        recent[0] = np.zeros(0, np.int32) if n > 1 else np.array([0, 3, 3], np.int32)
        penalty = rng.uniform(0.8, 2, n).astype(np.float32)
        return lambda: (ops.penalize(logits, recent, penalty, out=poison(n, vocab)),)

    return Case("penalize", name, prepare)


def sample(n: int, vocab: int) -> Case:
    name = f"{n}x{vocab}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        rng = seeded(name)
        # Rounded, so that equal logits occur; a masked token has no chance at all.
        logits = normal(rng, n, vocab, scale=3).round(2)
        logits[:, vocab // 2] = -np.inf
        calls = []
        for _ in range(20):
            t = rng.choice(np.array([0, 0.1, 0.7, 1, 3], np.float32), n)
            k = rng.choice(np.array([0, 1, 5, 40, 10**6], np.int32), n)
            top_p = rng.choice(np.array([1, 0.95, 0.5, 1e-6], np.float32), n)
            min_p = rng.choice(np.array([0, 0.05, 0.5, 1], np.float32), n)
            calls.append((logits, t, k, top_p, min_p, rng.random(n)))
        return lambda: tuple(ops.sample(*c) for c in calls)

    return Case("sample", name, prepare)
