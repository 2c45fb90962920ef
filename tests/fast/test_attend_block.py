"""The fused attention block equals the composition of its operations, bit for bit, and in any split of its rows."""

from __future__ import annotations

import numpy as np
import pytest

from polykv.cache.codecs import codec
from polykv.fast.cpu import attend, attention_block, kv_alloc, kv_append, kv_pack, linear, rms_norm, rope
from polykv.types import (
    F32,
    Activations,
    Angles,
    AttentionWeights,
    LayerKV,
    QuantTensor,
    Segment,
    Segments,
    Slots,
    WeightType,
)

E, H, G, D, T = 96, 6, 2, 32, 150


def weights(norms: bool, quantized: bool) -> AttentionWeights:
    rng = np.random.default_rng(7)

    def matrix(rows: int, cols: int) -> QuantTensor:
        if quantized:
            data = rng.integers(0, 256, (rows, cols // 32, 34), dtype=np.uint8)
            data[..., :2] = np.array([0.002], np.float16).view(np.uint8)
            return QuantTensor(WeightType.Q8_0, data.reshape(rows, -1), cols)
        w = (rng.standard_normal((rows, cols)) / 8).astype(np.float32)
        return QuantTensor(WeightType.F32, w.view(np.uint8), cols)

    def norm(n: int) -> F32:
        return (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)

    mats = matrix(H * D, E), matrix(G * D, E), matrix(G * D, E), matrix(E, H * D)
    extra = (norm(D), norm(D), norm(E)) if norms else (None, None, None)
    return AttentionWeights(norm(E), *mats, *extra, H, G, D, D**-0.5, 70 if norms else 0, 30.0 if norms else 0.0, 1e-6)


def composed(
    h: F32, w: AttentionWeights, kv: LayerKV, angles: Angles, s: Segments, slots: Slots, a: Activations
) -> None:
    n = len(h)
    m = rms_norm(h, w.norm, w.eps)
    q, k, v = (linear(m, x, activations=a).reshape(n, -1, D) for x in (w.wq, w.wk, w.wv))
    q = q if w.q_norm is None else rms_norm(q, w.q_norm, w.eps)
    k = k if w.k_norm is None else rms_norm(k, w.k_norm, w.eps)
    kv_append(kv.k, rope(k, angles), slots)
    kv_append(kv.v, v, slots)
    o, _ = attend(rope(q, angles), s, kv, scale=w.scale, window=w.window, softcap=w.softcap)
    y = linear(o.reshape(n, -1), w.wo, activations=a)
    h += y if w.post_norm is None else rms_norm(y, w.post_norm, w.eps)


@pytest.mark.parametrize("pair", ["f32/f32", "q8_0/turbo3", "turbo3/q4_0", "turbo2_tcq/q5_1"])
@pytest.mark.parametrize("mode", list(Activations), ids=lambda m: m.name)
@pytest.mark.parametrize("gemma", [False, True])
def test_block_is_its_composition(pair: str, mode: Activations, gemma: bool) -> None:
    w, rng = weights(gemma, mode == Activations.Q8), np.random.default_rng(8)
    x = rng.standard_normal((T, E)).astype(np.float32)
    blocks = np.array([3, 0, 2], np.int32)
    turns = np.arange(T)[:, None] * 100.0 ** (-np.arange(D // 2) / (D // 2))
    cos, sin = np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)

    def run(cuts: list[int], fused: bool) -> tuple[bytes, bytes, bytes]:
        h = x.copy()
        kv = LayerKV(*(kv_alloc(codec(n), 4, G, D, 64) for n in pair.split("/")))
        for a, b in zip([0, *cuts], [*cuts, T], strict=True):
            at = np.arange(a, b, dtype=np.int32)
            used = blocks[: -(-b // 64)]
            s = Segments.of([Segment(used, 0, b, at - a)], at)
            args = (
                h[a:b],
                w,
                kv,
                Angles(cos[a:b], sin[a:b], interleaved=not gemma),
                s,
                Slots(blocks[at // 64], at % 64),
            )
            if fused:
                attention_block(*args, activations=mode)
            else:
                composed(*args, mode)
        return h.tobytes(), kv_pack(kv.k, blocks).tobytes(), kv_pack(kv.v, blocks).tobytes()

    want = run([], fused=False)
    assert run([], fused=True) == want
    # A long prompt part, single tokens, and a few rows.
    assert run([100, 101, 102, 110], fused=True) == want


def test_rows_must_be_writable_in_place() -> None:
    w = weights(False, False)
    kv = LayerKV(*(kv_alloc(codec("f16"), 1, G, D, 64) for _ in range(2)))
    one = np.zeros((1, D // 2), np.float32)
    s, slots = Segments.of([], np.zeros(1, np.int32)), Slots(np.zeros(1, np.int32), np.zeros(1, np.int32))
    with pytest.raises(TypeError, match="float32"):
        attention_block(np.zeros((1, E)), w, kv, Angles(one, one, False), s, slots, activations=Activations.F32)
