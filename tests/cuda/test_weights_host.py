"""Unpacking of all weight types, on the host: equal to the reference bit for bit."""

from __future__ import annotations

import ctypes
import shutil

import host
import numpy as np
import pytest
from case_base import seeded, weight

from polykv import ref
from polykv.fast.cuda.weights import FIELDS, FLOATS, PIECE, by_field
from polykv.types import WEIGHT_BLOCK, WeightType

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

PACKED = [kind for kind in WeightType if kind not in FLOATS]
# What four lanes of a warp do together: lane q gets word q of four times 16 bytes.
QUAD = """
#include "memory.cuh"
inline uint4 quad_start(const void* at, int q) {
    unsigned words[16];
    for (int i = 0; i < 4; ++i) {
        const uint4 v = stream16((const unsigned char*)at + 16 * i);
        memcpy(words + 4 * i, &v, 16);
    }
    return {words[q], words[4 + q], words[8 + q], words[12 + q]};
}
inline uint4 quad_finish(uint4 v, int) { return v; }
"""
ENTRY = """
#include "dequantize.cuh"
#include "plain.cuh"
#include "tiles_k.cuh"
template <typename T> void unpack(float* y, const unsigned char* data, long long blocks) {
    const Fields fields = T::fields(data, blocks, 0);
    for (int b = 0; b < blocks; ++b)
        for (int part = 0; part < T::PIECES; ++part) {
            const auto raw = T::load(fields, b, part);
            for (int run = 0; run < T::RUNS; ++run)
                for (int i = 0; i < 4; ++i) {
                    const float4 v = values_of<T>(raw, part, run, i);
                    memcpy(y + (long long)b * T::VALUES + T::start(part) + run * T::STRIDE + 4 * i, &v, 16);
                }
        }
}
// The same values as lanes for tensor cores hold them: word q of every half of every step of a tile.
template <typename T> void unpack_tiles(float* y, const unsigned char* data, int tiles) {
    const Fields fields = T::fields(data, (long long)tiles * 128 / T::VALUES, 0);
    for (int i = 0; i < tiles * 4; ++i) {
        const int tile = i / 4, q = i % 4;
        Tile<T> t;
        t.start(fields, tile, q);
        t.finish(q);
        for (int step = 0; step < 4; ++step)
            for (int half = 0; half < 2; ++half)
                for (int j = 0; j < 4; ++j) {
                    const float code = code_of(t.word(step, half, q), j) - (float)T::ZERO;
                    float scale, minimum;
                    if constexpr (Tile<T>::HALVES) {
                        scale = t.scale() * (float)t.factor(step, half);
                        minimum = t.minimum() * (float)t.offset(step, half);
                    } else {
                        scale = t.scale(step);
                        minimum = t.minimum(step);
                    }
                    float v = scale * code;
                    if (T::MINIMUM) v -= minimum;
                    y[128 * tile + 32 * step + 16 * half + 4 * q + j] = v;
                }
    }
}
template <typename T> void copy(float* y, const unsigned char* data, long long n) {
    for (long long i = 0; i < n; ++i) y[i] = T::value(data, i);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = ENTRY
    for kind in WeightType:
        call = f"copy<{FLOATS[kind]}>" if kind in FLOATS else f"unpack<{kind.name}>"
        text += f'extern "C" void f_{kind.name}(float* y, const unsigned char* d, long long n) {{ {call}(y, d, n); }}\n'
        if kind not in FLOATS:
            text += (
                f'extern "C" void t_{kind.name}(float* y, const unsigned char* d, int n) '
                f"{{ unpack_tiles<{kind.name}>(y, d, n); }}\n"
            )
            text += f'extern "C" int p_{kind.name}() {{ return {kind.name}::VALUES / {kind.name}::PIECES; }}\n'
    return host.build(tmp_path_factory.mktemp("host"), text, {"quad.cuh": QUAD})


@pytest.mark.parametrize("kind", list(WeightType), ids=lambda k: k.name)
def test_values_are_those_of_the_reference(library: ctypes.CDLL, kind: WeightType) -> None:
    cols = 5 * WEIGHT_BLOCK[kind][0]
    w = weight(seeded(f"host-{kind.name}"), kind, 67, cols)
    data = host.aligned(by_field(w.data, kind))
    y = np.full((w.rows, cols), np.nan, np.float32)
    blocks = ctypes.c_longlong(w.rows * cols // WEIGHT_BLOCK[kind][0])
    library[f"f_{kind.name}"](host.pointer(y), host.pointer(data), blocks)
    assert np.array_equal(y.view(np.uint32), ref.dequantize(w).view(np.uint32))


@pytest.mark.parametrize("kind", PACKED, ids=lambda k: k.name)
def test_values_for_tensor_cores_are_those_of_the_reference(library: ctypes.CDLL, kind: WeightType) -> None:
    cols = 3 * max(128, WEIGHT_BLOCK[kind][0])
    w = weight(seeded(f"tiles-{kind.name}"), kind, 33, cols)
    data = host.aligned(by_field(w.data, kind))
    y = np.full((w.rows, cols), np.nan, np.float32)
    library[f"t_{kind.name}"](host.pointer(y), host.pointer(data), w.rows * cols // 128)
    assert np.array_equal(y.view(np.uint32), ref.dequantize(w).view(np.uint32))


@pytest.mark.parametrize("kind", PACKED, ids=lambda k: k.name)
def test_a_piece_has_the_size_that_launches_assume(library: ctypes.CDLL, kind: WeightType) -> None:
    assert library[f"p_{kind.name}"]() == PIECE[kind]


@pytest.mark.parametrize("kind", PACKED, ids=lambda k: k.name)
def test_fields_are_a_whole_block_and_aligned(kind: WeightType) -> None:
    size = WEIGHT_BLOCK[kind][1]
    taken = sorted(i for at, n in FIELDS[kind] for i in range(at, at + n))
    assert taken == list(range(size))
    before = 0
    for _, n in FIELDS[kind]:
        # The largest load that divides a field divides where it begins, for any number of blocks.
        load = min(n & -n, 16)
        assert before % load == 0
        before += n


def test_one_kernel_name_for_every_type() -> None:
    assert {*FIELDS, *FLOATS} == set(WeightType)
