"""Codecs against golden bytes, published distortions, and inputs that overflow fp16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_base import HEAD_DIMS, normal, seeded, vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polykv import ref
from polykv.cache.codecs import CODECS, codec
from polykv.types import Codec

KINDS = ("normal", "student_t3", "outlier", "zeros", "constant")
# Types that nobody else has.
OURS = ("turbo3_tcq_n", "turbo2_tcq_n")
# Type -> file of golden bytes; and those of which heads of other sizes are known too.
VECTORS = dict.fromkeys(("q8_0", "q4_0", "turbo3"), "vectors") | {
    name: "tiers" for name in CODECS if name not in ("f32", "f16", "bf16", "q8_0", "q4_0", "turbo3", *OURS)
}
PADDED = {"turbo3": "padding"} | dict.fromkeys(("turbo2", "turbo4_ep", "turbo3_tcq", "turbo2_tcq"), "padding_tiers")


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_golden_bytes(golden: Path, name: str, kind: str) -> None:
    x = np.load(golden / "formats/vectors.npz")[f"x_{kind}"]
    want = np.load(golden / f"formats/{VECTORS[name]}.npz")[f"{name}_{kind}"]
    got = ref.encode(codec(name), x)
    if codec(name).rotated and kind == "constant":
        # Rotated constants land on thresholds, where rounding noise decides: either neighbour is right.
        a, b = ref.decode(codec(name), got, 256), ref.decode(codec(name), want, 256)
        assert np.allclose(np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1), rtol=1e-3)
        assert np.square(a - x).sum() <= np.square(b - x).sum() * 1.001
    else:
        assert np.array_equal(used(codec(name), got), used(codec(name), want))


def used(c: Codec, data: np.ndarray) -> np.ndarray:
    """Without the last byte of a trellis block, which writers leave as it was."""
    return data.reshape(-1, c.block_bytes)[:, : c.group_bytes(128) if c.name.endswith("tcq") else None]


# Of these there are bytes, but no decoded values.
BYTES_ONLY = ("q8_0", "q4_0")


@pytest.mark.parametrize("name", [name for name in VECTORS if name not in BYTES_ONLY])
@pytest.mark.parametrize("kind", KINDS)
def test_golden_decoding(golden: Path, name: str, kind: str) -> None:
    z = np.load(golden / f"formats/{VECTORS[name]}.npz")
    want = z[f"{name}_decoded_{kind}"]
    assert np.array_equal(ref.decode(codec(name), z[f"{name}_{kind}"][: len(want)], 256), want)


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("dim", [64, 80, 96, 192, 256, 512])
def test_golden_padding(golden: Path, name: str, dim: int) -> None:
    z, x = np.load(golden / f"formats/{PADDED[name]}.npz"), np.load(golden / "formats/padding.npz")[f"x_{dim}"]
    data, want = ref.encode(codec(name), x), z[f"{name}_decoded_{dim}"]
    assert np.array_equal(used(codec(name), data), used(codec(name), z[f"{name}_{dim}"]))
    assert np.array_equal(ref.decode(codec(name), data, dim)[: len(want)], want)


# Mean row cosine of 64 x 256 values; docs/FORMATS.md.
COSINES = {
    "turbo2": (0.94003, 0.94303, 0.95995),
    "turbo3": (0.98288, 0.98372, 0.98746),
    "turbo4": (0.99530, 0.99563, 0.99606),
    "turbo4_ep": (0.99067, 0.99179, 0.99643),
    "turbo8": (0.999980, 0.999981, 0.999983),
    "turbo3_tcq": (0.98905, 0.98934, 0.99039),
    "turbo2_tcq": (0.96012, 0.96020, 0.96438),
    "q8_0": (0.999986, 0.999969, 0.999924),
    "q6_0": (0.999781, 0.999509, 0.998932),
    "q5_1": (0.99930, 0.99887, 0.99847),
    "q5_0": (0.99911, 0.99801, 0.99746),
    "q4_1": (0.99701, 0.99511, 0.99351),
    "q4_0": (0.99641, 0.99224, 0.99556),
    "iq4_nl": (0.99697, 0.99510, 0.99572),
}


@pytest.mark.parametrize("name", COSINES)
@pytest.mark.parametrize("kind", range(3))
def test_published_cosine(golden: Path, name: str, kind: int) -> None:
    x = np.load(golden / "formats/vectors.npz")[f"x_{KINDS[kind]}"].astype(np.float64)
    y = ref.decode(codec(name), ref.encode(codec(name), x.astype(np.float32)), 256).astype(np.float64)
    cos = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    published = COSINES[name][kind]
    assert cos.mean() == pytest.approx(published, abs=1e-5 if published < 0.9995 else 1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_cosine_holds_on_other_data(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((2000, 128)).astype(np.float32)
    y = ref.decode(codec("turbo3"), ref.encode(codec("turbo3"), x), 128)
    cos = (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    assert cos.mean() == pytest.approx(0.9828, abs=1e-3)
    # The stored norm is corrected for the length of the code vector: lengths survive up to fp16.
    assert np.allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-3)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dim", [*HEAD_DIMS, 1, 33])
def test_size_is_what_the_codec_says(name: str, dim: int) -> None:
    x = normal(seeded(name), 2, 3, dim)
    data = ref.encode(codec(name), x)
    assert data.shape == (2, 3, codec(name).exchange_bytes(dim))
    assert ref.decode(codec(name), data, dim).shape == x.shape


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q6_0", "q5_0", "q4_0"])
def test_decoded_values_are_a_fixed_point(name: str) -> None:
    x = normal(seeded(name), 50, 128)
    once = ref.encode(codec(name), x)
    assert np.array_equal(ref.encode(codec(name), ref.decode(codec(name), once, 128)), once)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_zero_is_exact(name: str, dim: int) -> None:
    data = ref.encode(codec(name), np.zeros((3, dim), np.float32))
    assert not ref.decode(codec(name), data, dim).any()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-12, 1e-7, 1e5, 1e9, 1e20, 3e38])
def test_any_finite_magnitude_gives_finite_values(name: str, scale: float) -> None:
    x = (np.random.default_rng(0).uniform(-1, 1, (20, 128)) * scale).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        y = ref.decode(codec(name), ref.encode(codec(name), x), 128)
    assert np.isfinite(y).all()
    assert float(np.abs(y).max()) <= max(4 * scale, 1e-6)


@pytest.mark.parametrize("name", ["q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "f16"])
def test_an_outlier_leaves_other_channels_alone(name: str) -> None:
    """A sink token's value of 1e5 in one channel: finite, and other blocks keep every bit."""
    x = normal(seeded("sink"), 8, 128)
    plain = ref.decode(codec(name), ref.encode(codec(name), x), 128)
    x[3, 70] = 1e5
    y = ref.decode(codec(name), ref.encode(codec(name), x), 128)
    block = slice(64, 96) if name != "f16" else slice(70, 71)
    assert np.isfinite(y).all()
    assert y[3, 70] == pytest.approx(1e5, rel=0.01) if name != "f16" else y[3, 70] == 65504
    y[3, block] = plain[3, block] = 0
    assert np.array_equal(y, plain)


def test_an_outlier_beyond_the_norm_of_turbo3_is_clamped() -> None:
    x = vectors("clamp", codec("turbo3"), "huge", 4, 128)
    y = ref.decode(codec("turbo3"), ref.encode(codec("turbo3"), x), 128)
    # The largest fp16 norm times the longest possible code vector.
    assert np.linalg.norm(y, axis=-1).max() <= 65504 * 0.190685 * np.sqrt(128) * 1.001
    cos = (x * y).sum(-1, dtype=np.float64) / np.linalg.norm(x.astype(np.float64), axis=-1) / np.linalg.norm(y, axis=-1)
    assert cos.min() > 0.95


floats = hnp.arrays(np.float32, (3, 128), elements=st.floats(-1e4, 1e4, width=32))


@given(floats)
@settings(deadline=None, max_examples=60)
def test_error_bounds_of_the_scalar_types(x: np.ndarray) -> None:
    peak = np.abs(x.reshape(3, 4, 32)).max(-1)
    for name, steps in (("q8_0", 127), ("q4_0", 8)):
        y = ref.decode(codec(name), ref.encode(codec(name), x), 128)
        error = np.abs(y - x).reshape(3, 4, 32).max(-1)
        # Half a step (a whole one at the clipped end of q4_0), the fp16 rounding of the scale, and its denormals.
        allowed = peak / steps * (0.5 if name == "q8_0" else 1.0) + peak * 2.0**-10 + steps * 2.0**-24
        assert (error <= allowed).all()


@given(floats)
@settings(deadline=None, max_examples=60)
def test_turbo3_decodes_to_the_same_length(x: np.ndarray) -> None:
    # Up to 1e4 the norm of a flat vector may exceed fp16; a tenth of that always fits.
    x = x / 10
    y = ref.decode(codec("turbo3"), ref.encode(codec("turbo3"), x), 128).astype(np.float64)
    n = np.linalg.norm(x.astype(np.float64), axis=-1)
    assert np.allclose(np.linalg.norm(y, axis=-1), n, rtol=2e-3, atol=1e-6)
