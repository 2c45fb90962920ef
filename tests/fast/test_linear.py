"""Products with packed weights: what the equivalence suite does not ask (numbers against `ref` are its subject)."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from case_base import FLOATS, normal, poison, seeded, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.errors import ConfigError
from polykv.fast.cpu import dequantize, embed, glu, head, linear, mlp_block, rms_norm, team
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.q8 import BLOCK, quantize_row
from polykv.ref.linear import round_activations
from polykv.types import WEIGHT_BLOCK, Activations, Glu, HeadWeights, MlpWeights, WeightType

KINDS = st.sampled_from(list(WeightType))


def columns(kind: WeightType, n: int) -> int:
    return n if kind in FLOATS else n // 32 * 32 if WEIGHT_BLOCK[kind][0] == 32 else n // 256 * 256


@settings(max_examples=60, deadline=None)
@given(KINDS, st.integers(1, 70), st.integers(256, 1400), st.integers(1, 140), st.sampled_from(list(Activations)))
def test_a_row_depends_on_nothing_else(kind: WeightType, rows: int, width: int, n: int, mode: Activations) -> None:
    """Bit for bit: other activation rows, the number of threads, other weight rows, garbage around the output."""
    rng = seeded(f"{kind}{rows}{width}{n}")
    cols = columns(kind, width)
    w, x = weight(rng, kind, rows, cols), normal(rng, n, cols)
    y = linear(x, w, activations=mode, out=poison(n, rows))
    assert np.isfinite(y).all()
    i = int(rng.integers(n))
    most = team.threads()
    team.set_threads(1)
    try:
        np.testing.assert_array_equal(linear(x[i : i + 1], w, activations=mode)[0], y[i])
        part = type(w)(kind, w.data[rows // 2 :], cols)
        np.testing.assert_array_equal(linear(x, part, activations=mode), y[:, rows // 2 :])
    finally:
        team.set_threads(most)


@pytest.mark.parametrize("kind", WeightType)
def test_the_last_tile_belongs_to_two_chunks(kind: WeightType) -> None:
    """Two workers write some of the same outputs at the same time: only values that are final may get there."""
    rng = seeded(f"last{kind}")
    w, x = weight(rng, kind, 129, 768), normal(rng, 5, 768)
    for n in (1, 2, 3, 5):
        want = linear(x, w, activations=Activations.Q8)[:n]
        for _ in range(150):
            np.testing.assert_array_equal(linear(x[:n], w, activations=Activations.Q8), want)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-30, 1e30))
def test_int8_rows(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((1, 96)) * scale).astype(np.float32)
    x[0, 32:64] = 0
    x[0, 64:] = np.float32(1e-39)
    q8 = np.full((3, BLOCK), 255, np.uint8)
    quantize_row(address(x), 96, address(q8))
    codes = q8[:, :32].view(np.int8).astype(np.int32)
    d = np.ascontiguousarray(q8[:, 32:36]).view(np.float32)
    np.testing.assert_array_equal((codes.astype(np.float32) * d).reshape(1, 96), round_activations(x))
    sums = np.ascontiguousarray(q8[:, 44:52]).view(np.int32)
    np.testing.assert_array_equal(sums, codes.reshape(3, 2, 16).sum(-1))
    np.testing.assert_array_equal(np.ascontiguousarray(q8[:, 36:40]).view(np.int32), sums.sum(-1, keepdims=True))
    np.testing.assert_array_equal(np.ascontiguousarray(q8[:, 52:60]).view(np.float32), d * sums.astype(np.float32))


def test_strided_input_and_output() -> None:
    rng = seeded("strided")
    w, x = weight(rng, WeightType.Q4_K, 24, 256), normal(rng, 6, 512)
    y = linear(np.ascontiguousarray(x[::2, ::2]), w, activations=Activations.Q8)
    wide = poison(3, 48)
    given_out = wide[:, ::2]
    assert linear(x[::2, ::2], w, activations=Activations.Q8, out=given_out) is given_out
    np.testing.assert_array_equal(given_out, y)
    assert np.isnan(wide[:, 1::2]).all()


def test_misfits_are_refused() -> None:
    """Kernels see addresses only: a wrong width would read beyond the arrays."""
    w = weight(seeded("misfit"), WeightType.Q8_0, 64, 64)
    x = normal(seeded("x"), 2, 96)
    with pytest.raises(ValueError, match="96 columns, W has 64"):
        linear(x, w, activations=Activations.Q8)
    with pytest.raises(ValueError, match="96 columns"):
        head(x, HeadWeights(x[0], w, 0.0, 1e-6), activations=Activations.Q8)
    block = MlpWeights(x[0, :64], w, w, w, None, Glu.SILU, 1e-6)
    for h in (x, x[:, :64], x[:, :64].astype(np.float64)):
        with pytest.raises(ValueError, match="C-contiguous float32"):
            mlp_block(h, block, activations=Activations.Q8)
    wide = x[:, :64].astype(np.float64)
    np.testing.assert_array_equal(
        linear(wide, w, activations=Activations.Q8), linear(x[:, :64], w, activations=Activations.Q8)
    )


def test_read_only_weights() -> None:
    w = weight(seeded("map"), WeightType.Q8_0, 9, 64)
    x = normal(seeded("x"), 2, 64)
    y = linear(x, w, activations=Activations.Q8)
    w.data.flags.writeable = False
    np.testing.assert_array_equal(linear(x, w, activations=Activations.Q8), y)
    assert dequantize(w).shape == (9, 64)


@pytest.mark.parametrize("kind", [WeightType.Q4_1, WeightType.Q6_K, WeightType.BF16])
def test_embedding_rows(kind: WeightType) -> None:
    w = weight(seeded("embed"), kind, 300, 512)
    every = dequantize(w)
    ids = seeded("ids").integers(0, 300, 200).astype(np.int32)
    np.testing.assert_array_equal(dequantize(w, ids), every[ids])
    np.testing.assert_array_equal(embed(w, ids, 22.6), every[ids] * np.float32(22.6))
    for bad in (-1, 300):
        with pytest.raises(IndexError, match="rows must be 0 to 299"):
            embed(w, np.array([0, bad], np.int32), 1.0)


# gate, up, down, width, features: mixed types, odd sizes of float matrices.
SHAPES = [
    (WeightType.Q4_1, WeightType.Q4_1, WeightType.Q4_1, 576, 1536),
    (WeightType.Q4_K, WeightType.Q5_0, WeightType.Q6_K, 256, 768),
    (WeightType.F16, WeightType.Q8_0, WeightType.F32, 96, 63),
    (WeightType.F32, WeightType.F32, WeightType.BF16, 40, 7),
]


@pytest.mark.parametrize("mode", Activations)
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(t.name for t in s[:3]))
def test_mlp_block_equals_its_parts(
    shape: tuple[WeightType, WeightType, WeightType, int, int], post: bool, mode: Activations
) -> None:
    """The fused block is the composition of this backend's operations, bit for bit, for few rows and many."""
    gate, up, down, width, features = shape
    rng = seeded(str(shape))
    w = MlpWeights(
        normal(rng, width),
        weight(rng, gate, features, width),
        weight(rng, up, features, width),
        weight(rng, down, width, features),
        normal(rng, width) if post else None,
        Glu.GELU_TANH if post else Glu.SILU,
        1e-5,
    )
    for n in (0, 1, 3, 40, 150):
        h = normal(rng, n, width)
        m = rms_norm(h, w.norm, w.eps)
        act = glu(linear(m, w.gate, activations=mode), linear(m, w.up, activations=mode), w.glu)
        y = linear(act, w.down, activations=mode)
        want = h + (y if w.post_norm is None else rms_norm(y, w.post_norm, w.eps))
        mlp_block(h, w, activations=mode)
        np.testing.assert_array_equal(h, want)


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_head_equals_its_parts(cap: float) -> None:
    rng = seeded("head")
    w = HeadWeights(normal(rng, 64), weight(rng, WeightType.Q8_0, 1001, 64, gain=4.0), cap, 1e-6)
    for n in (1, 70):
        h = normal(rng, n, 64)
        y = linear(rms_norm(h, w.norm, w.eps), w.out, activations=Activations.Q8)
        got = head(h, w, activations=Activations.Q8, out=poison(n, 1001))
        np.testing.assert_allclose(got, cap * np.tanh(y / cap) if cap else y, rtol=1e-6)


def test_threads_of_python_take_turns() -> None:
    """Concurrent calls share the workers' counters and memory, one region at a time."""
    rng = seeded("turns")
    w = weight(rng, WeightType.Q4_0, 512, 256)
    inputs = [normal(rng, n, 256) for n in (1, 9, 40)]
    want = [linear(x, w, activations=Activations.Q8) for x in inputs]
    wrong: list[int] = []

    def run(i: int) -> None:
        for _ in range(50):
            if not np.array_equal(linear(inputs[i], w, activations=Activations.Q8), want[i]):
                wrong.append(i)

    runners = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for r in runners:
        r.start()
    for r in runners:
        r.join()
    assert not wrong


def test_thread_count_is_checked() -> None:
    for bad in (0, -1, 10**6):
        with pytest.raises(ConfigError, match="threads must be 1 to"):
            team.set_threads(bad)
