"""Integer and float products of the kernels' device functions, on the host, against the reference."""

from __future__ import annotations

import ctypes
import shutil

import host
import numpy as np
import pytest
from agreement import worst_error
from case_base import normal, seeded, weight

from polykv import ref
from polykv.fast.cuda.weights import FIELDS, by_field
from polykv.ops import Agreement
from polykv.ref.blocks import split
from polykv.ref.scalar import int8_blocks
from polykv.types import WEIGHT_BLOCK, Activations, WeightType

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="g++ is not installed: device code needs a GPU then"
)

N = 3
ENTRY = """
#include "linear.cuh"
// One row of W, its pieces as 32 lanes take them.
template <typename T>
void q8(float* y, const unsigned char* data, const void* codes, const void* scales, int rows, int cols) {
    const int blocks = cols / T::VALUES;
    const Activations x = {(const signed char*)codes, (const uint2*)scales, cols};
    for (int row = 0; row < rows; ++row) {
        const Fields f = T::fields(data, (long long)rows * blocks, (long long)row * blocks);
        float sums[4] = {};
        for (int piece = 0; piece < blocks * T::PIECES; ++piece) {
            const int part = piece % T::PIECES, at = piece / T::PIECES * T::VALUES + T::start(part);
            add_piece<T>(sums, T::load(f, piece / T::PIECES, part), part, x, at, 3);
        }
        for (int r = 0; r < 3; ++r) y[r * rows + row] = sums[r];
    }
}
template <typename T>
void f32(float* y, const unsigned char* data, const float* x, int rows, int cols) {
    const int blocks = cols / T::VALUES;
    for (int row = 0; row < rows; ++row) {
        const Fields f = T::fields(data, (long long)rows * blocks, (long long)row * blocks);
        float sums[4] = {};
        for (int piece = 0; piece < blocks * T::PIECES; ++piece) {
            const int part = piece % T::PIECES, at = piece / T::PIECES * T::VALUES + T::start(part);
            add_piece_f32<T>(sums, T::load(f, piece / T::PIECES, part), part, x, cols, at, 3);
        }
        for (int r = 0; r < 3; ++r) y[r * rows + row] = sums[r];
    }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = ENTRY
    for name in (kind.name for kind in FIELDS):
        text += f"""
extern "C" void q8_{name}(float* y, const unsigned char* d, const void* c, const void* s, int rows, int cols) {{
    q8<{name}>(y, d, c, s, rows, cols);
}}
extern "C" void f32_{name}(float* y, const unsigned char* d, const float* x, int rows, int cols) {{
    f32<{name}>(y, d, x, rows, cols);
}}"""
    return host.build(tmp_path_factory.mktemp("host"), text)


@pytest.mark.parametrize("mode", list(Activations), ids=lambda a: a.name)
@pytest.mark.parametrize("kind", FIELDS, ids=lambda k: k.name)
def test_products_are_those_of_the_reference(library: ctypes.CDLL, kind: WeightType, mode: Activations) -> None:
    rng = seeded(f"host-linear-{kind.name}")
    cols = 3 * WEIGHT_BLOCK[kind][0]
    w = weight(rng, kind, 37, cols)
    x = normal(rng, N, cols) * np.exp(rng.normal(size=(N, 1))).astype(np.float32)
    matrix = host.aligned(by_field(w.data, kind))
    y = np.full((N, w.rows), np.nan, np.float32)
    if mode == Activations.Q8:
        codes, d = int8_blocks(split(x, 32), limit=np.inf)
        sums = codes.reshape(N, -1, 2, 16).sum(axis=-1, dtype=np.int16)
        scales = np.concatenate([d.view(np.uint32), sums.view(np.uint32)], axis=-1)
        library[f"q8_{kind.name}"](*map(host.pointer, (y, matrix, codes, scales)), w.rows, cols)
    else:
        library[f"f32_{kind.name}"](*map(host.pointer, (y, matrix, x)), w.rows, cols)
    want = ref.linear(x, w, activations=mode)
    assert worst_error(Agreement.RATIO, (y,), (want,)) < 1e-6
