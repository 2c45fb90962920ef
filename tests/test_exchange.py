"""The public quantizer: shapes, agreement with the codecs, and what it refuses."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from case_base import HOSTS

import polykv
from polykv import ref
from polykv.cache.codecs import CODECS
from polykv.errors import ConfigError, UnsupportedError
from polykv.exchange import dequantize, quantize
from polykv.ops import load


@pytest.mark.parametrize("tier", CODECS)
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_round_trip_is_that_of_the_codec(tier: str, dim: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, dim)).astype(np.float32)
    blocks = quantize(tier, x)
    assert np.array_equal(blocks, ref.encode(CODECS[tier], x))
    assert np.array_equal(dequantize(tier, blocks, dim), ref.decode(CODECS[tier], blocks, dim))


@pytest.mark.parametrize("backend", HOSTS)
@pytest.mark.parametrize("tier", CODECS)
def test_every_backend_serves_it(tier: str, backend: str) -> None:
    """Or says that it does not have the type."""
    x = np.random.default_rng(1).standard_normal((7, 80)).astype(np.float32)
    reason = load(backend).supports_kv(CODECS[tier], CODECS[tier], 80, 64)
    if reason is not None:
        for call in (lambda: quantize(tier, x, backend), lambda: dequantize(tier, quantize(tier, x), 80, backend)):
            with pytest.raises(UnsupportedError, match=reason):
                call()
        return
    blocks = quantize(tier, x, backend=backend)
    assert blocks.dtype == np.uint8 and blocks.shape == (7, CODECS[tier].exchange_bytes(80))
    y = dequantize(tier, blocks, 80, backend=backend)
    assert np.allclose(y, dequantize(tier, quantize(tier, x), 80), rtol=0, atol=1e-5)


def test_takes_other_floats_views_and_lists() -> None:
    x = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32)
    want = quantize("q4_0", x)
    assert np.array_equal(quantize("q4_0", x.astype(np.float64)), want)
    assert np.array_equal(quantize("q4_0", np.asfortranarray(x)), want)
    assert np.array_equal(quantize("q4_0", x.tolist()), want)
    assert np.array_equal(dequantize("q4_0", want[::2], 128), dequantize("q4_0", want, 128)[::2])


@pytest.mark.parametrize(
    ("tier", "x", "word"),
    [
        ("q9", np.zeros(32, np.float32), "q9"),
        ("q8_0/turbo3", np.zeros(32, np.float32), "q8_0/turbo3"),
        ("q8_0", np.zeros(32, np.int32), "int32"),
        ("q8_0", np.zeros(32, np.complex64), "complex64"),
        ("q8_0", np.float32(1), "shape []"),
        ("q8_0", np.zeros((3, 0), np.float32), "shape [3, 0]"),
        ("q8_0", np.array([np.nan]), "not finite"),
        ("f32", np.array([1e300]), "not finite"),
        ("q8_0", np.array(["a"]), "dtype"),
        ("q8_0", [[1.0], [1.0, 2.0]], "array"),
        (None, np.zeros(32, np.float32), "None"),
        (b"q8_0", np.zeros(32, np.float32), "b'q8_0'"),
    ],
)
def test_quantize_refuses(tier: Any, x: Any, word: str) -> None:
    with pytest.raises(ConfigError) as error:
        quantize(tier, x)
    assert word in str(error.value)


@pytest.mark.parametrize(
    ("blocks", "dim", "word"),
    [
        (np.zeros((2, 34), np.int8), 32, "int8"),
        (np.zeros((2, 34), np.uint8), 64, "34 bytes"),
        (np.zeros((2, 34), np.uint8), 0, "head_dim"),
        (np.zeros((2, 34), np.uint8), 32.0, "head_dim"),
        (np.uint8(3), 32, "0 bytes"),
        ([[1], [1, 2]], 32, "array"),
    ],
)
def test_dequantize_refuses(blocks: Any, dim: Any, word: str) -> None:
    with pytest.raises(ConfigError) as error:
        dequantize("q8_0", blocks, dim)
    assert word in str(error.value)


def test_unknown_backend() -> None:
    with pytest.raises(ConfigError, match="gpu"):
        quantize("q8_0", np.zeros(32, np.float32), backend="gpu")


def test_public_names_stay_functions() -> None:
    """A submodule called like a public function would replace it in the package once it is imported."""
    x = np.ones((2, 128), np.float32)
    for _ in range(2):
        assert polykv.dequantize("q8_0", polykv.quantize("q8_0", x), 128).shape == x.shape
    for name in polykv.__all__:
        assert not isinstance(getattr(polykv, name), type(polykv)), name


@pytest.mark.parametrize("backend", HOSTS)
@pytest.mark.parametrize("tier", [*(name for name in CODECS if name != "f32"), "q4_0+r"])
def test_clamping_is_told(tier: str, backend: str) -> None:
    x = np.random.default_rng(2).standard_normal((3, 4, 80)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantize(tier, x, backend)
        quantize(tier, x[:0], backend)
    x[1, 2, :8] = np.finfo(np.float32).max
    x[2, 0, 70:] = -np.finfo(np.float32).max
    with pytest.warns(UserWarning, match=re.escape(f"2 of 12 vectors reach the limit of what {tier} can hold")):
        quantize(tier, x, backend)


@pytest.mark.parametrize("tier", ["q5_1", "q4_1"])
def test_a_clamped_minimum_is_told(tier: str) -> None:
    """Its scale may be small."""
    with pytest.warns(UserWarning, match="1 of 1 vectors"):
        quantize(tier, np.full((1, 64), -1e6, np.float32) + np.arange(64, dtype=np.float32))
