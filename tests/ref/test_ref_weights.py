"""dequantize against the gguf package, and linear against both definitions of its activations."""

from __future__ import annotations

import importlib

import gguf
import numpy as np
import pytest
from case_base import FLOATS, normal, seeded, weight

from polykv import ref
from polykv.types import WEIGHT_BLOCK, Activations, QuantTensor, WeightType


@pytest.mark.parametrize("kind", WeightType)
def test_random_bytes_as_the_gguf_package_reads_them(kind: WeightType) -> None:
    values, size = WEIGHT_BLOCK[kind]
    n_blocks = 64 if kind in FLOATS else 5
    data = seeded(kind.name).integers(0, 256, (400, n_blocks * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(int(kind)))
    got = ref.dequantize(QuantTensor(kind, data, n_blocks * values))
    finite = np.isfinite(want)
    # Random scales cover the whole fp16 range, denormals included; a few percent of them are infinite or NaN.
    assert finite.mean() > 0.5
    assert np.array_equal(got[finite], want[finite])
    assert np.array_equal(np.isfinite(got), finite)


@pytest.mark.parametrize("kind", WeightType)
def test_rows_can_be_read_alone(kind: WeightType) -> None:
    w = weight(seeded(kind.name), kind, 9, 512)
    rows = np.array([8, 0, 3, 3], np.int32)
    assert np.array_equal(ref.dequantize(w, rows), ref.dequantize(w)[rows])


def test_weights_are_read_from_memory_that_cannot_be_written() -> None:
    w = weight(seeded("mmap"), WeightType.Q6_K, 4, 256)
    w.data.flags.writeable = False
    assert ref.dequantize(w).shape == (4, 256)


@pytest.mark.parametrize("kind", WeightType)
def test_linear_is_a_matrix_product(kind: WeightType) -> None:
    rng = seeded(kind.name)
    w, x = weight(rng, kind, 70, 512), normal(rng, 33, 512)
    want = x.astype(np.float64) @ ref.dequantize(w).astype(np.float64).T
    assert np.abs(ref.linear(x, w, activations=Activations.F32) - want).max() < 1e-5


def test_linear_in_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded("tiles")
    w, x = weight(rng, WeightType.Q8_0, 100, 64), normal(rng, 3, 64)
    whole = ref.linear(x, w, activations=Activations.F32)
    monkeypatch.setattr(importlib.import_module("polykv.ref.linear"), "TILE", 7 * 64)
    assert np.allclose(ref.linear(x, w, activations=Activations.F32), whole, atol=1e-6)


def test_q8_activations_are_exact_integer_products() -> None:
    """sum over blocks of d_x * d_w * (integer dot product), with the integers taken from the bytes themselves."""
    rng = seeded("q8")
    w, x = weight(rng, WeightType.Q8_0, 20, 96), normal(rng, 5, 96)
    blocks = w.data.reshape(20, 3, 34)
    qw = blocks[..., 2:].view(np.int8).astype(np.int64)
    dw = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float64)
    groups = x.reshape(5, 3, 32).astype(np.float64)
    dx = np.abs(groups).max(-1) / 127
    qx = np.rint(groups / dx[..., None]).astype(np.int64)
    want = np.einsum("rbi,nbi,rb,nb->rn", qx, qw, dx, dw)
    assert np.abs(ref.linear(x, w, activations=Activations.Q8) - want).max() < 1e-5


@pytest.mark.parametrize("kind", FLOATS)
def test_float_weights_take_float_activations(kind: WeightType) -> None:
    rng = seeded(kind.name)
    w, x = weight(rng, kind, 5, 63), normal(rng, 2, 63)
    q8, f32 = (ref.linear(x, w, activations=a) for a in (Activations.Q8, Activations.F32))
    assert np.array_equal(q8, f32)


def test_zero_rows_survive_q8() -> None:
    w = weight(seeded("zero"), WeightType.Q4_0, 5, 64)
    assert not ref.linear(np.zeros((2, 64), np.float32), w, activations=Activations.Q8).any()
