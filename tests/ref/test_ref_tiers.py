"""What every type promises: distortion on every head_dim, an order of the types, and properties of any input."""

from __future__ import annotations

import re

import numpy as np
import pytest
from case_base import squared_error
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv import ref
from polykv.cache.codecs import CODECS, VARIANTS, codec
from polykv.errors import ConfigError
from polykv.ref.codec import decode_groups, encode_groups
from polykv.ref.rotation import rotate_in, rotate_out
from polykv.types import Codec, Family

ROTATED = [name for name, c in CODECS.items() if c.rotated]
DIMS = (64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 288, 320, 448, 512, 576)
# Squared error relative to the squared length of N(0, 1) vectors, in the exchange layout at head_dim 128.
BARS = {"turbo4": 0.0095, "turbo3": 0.0345, "turbo2": 0.121, "turbo3_tcq": 0.0225, "turbo2_tcq": 0.081} | {
    "turbo3_tcq_n": 0.0195,
    "turbo2_tcq_n": 0.0755,
}


def packed(c: Codec, x: np.ndarray) -> np.ndarray:
    """Vectors as memory gives them back."""
    d = x.shape[-1]
    g = c.group(d)
    y = decode_groups(c, encode_groups(c, x, g), d, g)
    return np.asarray(rotate_out(c, y, c.turn(d), d)) if c.rotated else y


def nmse(c: Codec, x: np.ndarray) -> float:
    return float(np.square(packed(c, x) - x).sum() / np.square(x).sum())


def normal(d: int, values: int = 100_000) -> np.ndarray:
    return np.random.default_rng(d).standard_normal((values // d, d)).astype(np.float32)


@pytest.mark.parametrize("name", BARS)
@pytest.mark.parametrize("dim", DIMS)
def test_distortion_on_every_head_dim(name: str, dim: int) -> None:
    assert nmse(codec(name), normal(dim)) <= BARS[name] * (1.0 if dim == 128 else 1.02)


def test_paths_of_two_bits_are_short() -> None:
    """Long heads are several paths, all of them with a Hadamard matrix of their own order; other types stay whole."""
    c = codec("turbo2_tcq")
    assert [c.group(d) for d in (192, 224, 256, 288, 320, 448, 512, 576)] == [192, 224, 128, 144, 160, 224, 128, 192]
    assert [codec("turbo3_tcq").group(d) for d in (288, 320, 448, 576)] == [288, 320, 448, 576]


@pytest.mark.parametrize("dim", DIMS)
def test_bits_are_what_they_are_called(dim: int) -> None:
    """No group is padded: bits per value are the code's, 16 of a norm, 6 of a path's start, and rounding to bytes."""
    for name in ROTATED:
        c = codec(name)
        bits = 8 * c.packed_bytes(dim) / dim - c.bits
        g = c.group(dim)
        assert 0 < bits <= (16 + (6 if c.family == Family.TRELLIS else 0) + 7) / g
        assert dim % g == 0


ORDER = ["turbo8", "turbo4", "turbo3_tcq_n", "turbo3_tcq", "turbo3", "turbo2_tcq_n", "turbo2_tcq", "turbo2"]
SCALAR = ["f16", "bf16", "q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0"]


@pytest.mark.parametrize("dim", [64, 80, 128, 576])
@pytest.mark.parametrize("heavy", [False, True])
def test_more_bits_less_error(dim: int, heavy: bool) -> None:
    rng = np.random.default_rng(dim)
    x = rng.standard_t(3, (300, dim)).astype(np.float32) if heavy else normal(dim, 300 * dim)
    for names in (ORDER, ["turbo8", "turbo4", "turbo4_ep", "turbo3"], SCALAR):
        errors = [nmse(codec(name), x) for name in names]
        assert errors == sorted(errors) and len(set(errors)) == len(errors), dict(zip(names, errors, strict=True))


seeds = st.integers(0, 2**32 - 1)
shapes = st.tuples(st.sampled_from([8, 16, 64, 72, 80, 104, 128, 192]), seeds)
# Largest squared error of one vector, relative to its squared length: rotated types do not know hard inputs.
WORST = {"turbo8": 5e-4, "turbo4": 0.04, "turbo4_ep": 0.09, "turbo3": 0.1, "turbo2": 0.35} | {
    "turbo3_tcq": 0.1,
    "turbo2_tcq": 0.35,
    "turbo3_tcq_n": 0.1,
    "turbo2_tcq_n": 0.35,
}
# Largest error of one value of a scalar type, in shares of the largest magnitude (or range) of its 32.
STEPS = {
    "q8_0": 0.5 / 127,
    "q6_0": 1 / 32,
    "q5_0": 1 / 16,
    "q4_0": 1 / 8,
    "iq4_nl": 0.13,
    "q5_1": 0.5 / 31,
    "q4_1": 0.5 / 15,
}


def hard(dim: int, seed: int, rows: int = 4) -> np.ndarray:
    """Vectors of all kinds of scales: normal, heavy-tailed, one channel alone, one far above the others, constant."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, dim))
    kind = seed % 5
    if kind == 1:
        x = rng.standard_t(2, (rows, dim))
    elif kind == 2:
        x[:, 1:] = 0
    elif kind == 3:
        x[:, rng.integers(dim)] *= 100
    elif kind == 4:
        x[:] = x[:, :1]
    return (x * 10.0 ** rng.uniform(-2, 2)).astype(np.float32)


@pytest.mark.parametrize("name", CODECS)
@given(shape=shapes)
@settings(deadline=None, max_examples=25)
def test_error_bound(name: str, shape: tuple[int, int]) -> None:
    c, x = codec(name), hard(*shape)
    error = np.abs(packed(c, x).astype(np.float64) - x)
    if c.unit_norm:
        size = np.square(x.astype(np.float64)).sum(-1)
        assert (np.square(error).sum(-1) <= WORST[name] * size).all()
    elif c.block == 1:
        assert (error <= np.abs(x) * {"f32": 0, "f16": 2.0**-11, "bf16": 2.0**-8}[name] + 2.0**-25).all()
    else:
        pad = np.pad(x, [(0, 0), (0, -x.shape[1] % 32)]).reshape(len(x), -1, 32)
        reach = np.ptp(pad, axis=-1) if name.endswith("_1") else np.abs(pad).max(-1)
        # The fp16 rounding of scale and minimum, and what denormals of theirs lose.
        allowed = STEPS[name] * reach + np.abs(pad).max(-1) * 2.0**-9 + 130 * 2.0**-24
        assert (error <= np.repeat(allowed, 32, axis=1)[:, : x.shape[1]]).all()


@pytest.mark.parametrize("name", [*CODECS, *VARIANTS])
@given(shape=shapes, power=st.integers(-6, 6))
@settings(deadline=None, max_examples=15)
def test_scale_invariance(name: str, shape: tuple[int, int], power: int) -> None:
    """A power of two changes scales only, as long as fp16 has normal numbers for them."""
    c, x = codec(name), np.random.default_rng(shape[1]).standard_normal((3, shape[0])).astype(np.float32)
    x = np.sign(x) * (np.abs(x) + np.float32(0.05))
    factor = np.float32(2.0**power)
    assert np.array_equal(packed(c, x * factor), packed(c, x) * factor)


@pytest.mark.parametrize("name", [*CODECS, *VARIANTS])
@given(shape=shapes)
@settings(deadline=None, max_examples=15)
def test_a_zero_vector_is_zero_and_rows_do_not_know_each_other(name: str, shape: tuple[int, int]) -> None:
    c, x = codec(name), hard(*shape, rows=9)
    x[3] = 0
    y = packed(c, x)
    assert not y[3].any()
    order = np.random.default_rng(shape[1]).permutation(9)
    group = c.group(shape[0])
    assert np.array_equal(encode_groups(c, x[order], group), encode_groups(c, x, group)[order])
    assert np.array_equal(packed(c, x[:1]), y[:1])


@pytest.mark.parametrize("name", [*CODECS, *VARIANTS])
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-12, 1e-7, 1e5, 1e9, 1e20, 3e38])
@pytest.mark.parametrize("dim", [72, 576])
def test_own_groups_survive_any_finite_magnitude(name: str, scale: float, dim: int) -> None:
    x = (np.random.default_rng(0).uniform(-1, 1, (5, dim)) * scale).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        y = packed(codec(name), x)
    assert np.isfinite(y).all()
    assert float(np.abs(y).max()) <= max(4 * scale, 1e-6)


@pytest.mark.parametrize("name", ["q5_1", "q4_1"])
def test_minima_beyond_fp16_are_clamped_and_steps_follow(name: str) -> None:
    x = np.linspace(0, 30, 32, dtype=np.float32)
    for offset, nearest in ((1e6, 65504.0), (-1e6, -65504.0), (60000.0, None)):
        y = ref.decode(codec(name), ref.encode(codec(name), x + np.float32(offset)), 32)
        assert np.isfinite(y).all()
        if nearest is None:
            assert np.abs(y - x - offset).max() < 32
        else:
            assert (np.abs(y) >= 65504).all() and (np.sign(y) == np.sign(offset)).all()


@pytest.mark.parametrize("name", ROTATED)
@pytest.mark.parametrize("dim", [128, 256, 512])
def test_packed_and_exchange_codes_agree_where_groups_do(name: str, dim: int) -> None:
    """Whole groups of 128: packed bytes are the exchange bytes without reserved ones."""
    from polykv.ref.codec import without_reserved

    c, x = codec(name), normal(dim, 20 * dim)
    assert np.array_equal(without_reserved(c, ref.encode(c, x)), encode_groups(c, x, c.group(dim)))
    assert squared_error(c, x, ref.encode(c, x), c.block).shape == (20,)


@pytest.mark.parametrize("name", [*CODECS, *VARIANTS])
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 12, 20, 33, 130])
def test_any_head_dim(name: str, dim: int) -> None:
    c, x = codec(name), normal(dim, 8 * dim)
    data = encode_groups(c, x, c.group(dim))
    assert data.shape == (8, c.packed_bytes(dim))
    assert np.square(packed(c, x) - x).sum() <= WORST.get(name, 0.02) * np.square(x).sum()


@pytest.mark.parametrize("name", [*CODECS, *VARIANTS])
def test_no_vectors_are_fine(name: str) -> None:
    for shape in ((0, 64), (3, 0, 72)):
        data = ref.encode(codec(name), np.zeros(shape, np.float32))
        assert data.shape == (*shape[:-1], codec(name).exchange_bytes(shape[-1]))
        assert ref.decode(codec(name), data, shape[-1]).shape == shape
        assert packed(codec(name), np.zeros(shape, np.float32)).shape == shape


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dim", [16, 64, 80, 104, 128, 256])
def test_a_rotated_scalar_type_codes_the_rotated_vector(name: str, dim: int) -> None:
    """Rotate, then the scalar type; one channel far above the others then costs little."""
    c, scalar, x = codec(name), codec(name.removesuffix("+r")), normal(dim, 20 * dim)
    turned = rotate_in(c, x, c.turn(dim))
    assert np.array_equal(encode_groups(c, x, 32), encode_groups(scalar, turned, 32))
    assert c.packed_bytes(dim) == scalar.packed_bytes(c.stored_dim(dim)) == c.exchange_bytes(dim)
    assert np.array_equal(ref.encode(c, x), encode_groups(c, x, 32))
    assert np.allclose(ref.decode(c, ref.encode(c, x), dim), packed(c, x))
    if dim >= 64:
        x[:, 5] *= 30
        assert nmse(c, x) < 3 * nmse(c, normal(dim, 20 * dim))


def test_rotation_pays_for_outliers_and_costs_nothing_else() -> None:
    x = normal(64)
    assert abs(nmse(codec("q4_0+r"), x) / nmse(codec("q4_0"), x) - 1) < 0.02
    x[:, 5] *= 30
    small = np.delete(np.arange(64), 5)
    error = {n: float(np.square(packed(codec(n), x) - x)[:, small].mean()) for n in ("q4_0", "q4_0+r")}
    assert error["q4_0+r"] < 0.5 * error["q4_0"]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("TBQ3_0", "turbo3"), ("tbq8_0", "turbo8"), ("turbo4_0", "turbo4"), ("TURBO2_0", "turbo2"), ("Q8_0", "q8_0"),
        ("BF16", "bf16"), ("TURBO3_TCQ", "turbo3_tcq"), ("TBQ4_0+c", "turbo4+c"), ("Q4_0+r", "q4_0+r"),
    ],
)  # fmt: skip
def test_other_spellings_are_the_same_type(given: str, name: str) -> None:
    assert codec(given) == codec(name) and codec(given).name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("turbo5_0", "unknown K/V type 'turbo5_0'"),
        ("turbo3+r", "turbo3 is rotated already"),
        ("f16+r", "nothing to gain for f16"),
        ("q4_0+x", "unknown addition '+x'"),
        ("q4_0+r+r", "unknown addition"),
        ("q4+r", "unknown K/V type 'q4'"),
    ],
)
def test_additions_that_make_no_sense(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        codec(name)
