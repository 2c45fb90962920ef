"""The cache of the CUDA backend where it differs from others: shared tiles, rows of padding, foreign arrays."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import OTHER_PATHS, worst_cost
from case_base import normal, seeded, squared_error, vectors

from polykv import ref
from polykv.cache.codecs import codec
from polykv.errors import UnsupportedError
from polykv.fast import cuda
from polykv.fast.cuda.arrays import asarray, asnumpy
from polykv.fast.cuda.device import cupy, problem
from polykv.fast.cuda.kv_write import KeySteps, New, write, write_both
from polykv.ref.codec import encode_groups
from polykv.types import Angles, Family, LayerKV, Slots

GPU = problem()
pytestmark = pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}")

TYPES = (
    *("f16", "bf16", "q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
    *("turbo8", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq"),
)


def slots(cells: np.ndarray, size: int) -> Slots:
    return Slots(asarray((cells // size).astype(np.int32)), asarray((cells % size).astype(np.int32)))


@pytest.mark.parametrize("values", [False, True], ids=["k", "v"])
@pytest.mark.parametrize("name", TYPES)
def test_many_rows_at_once_are_those_of_the_reference(name: str, values: bool) -> None:
    """Cells of a tile are written by different warps at the same time, in any order; all bits are the reference's, but
    for some paths that are as good."""
    c, n, heads, dim, size = codec(name), 4096, 8, 128, 128
    x = vectors("many", c, "student", n, heads, dim)
    cells = np.random.default_rng(5).permutation(n).astype(np.int32)
    arena = cuda.kv_alloc(c, n // size, heads, dim, size, values=values)
    for rows in (slice(0, n), slice(n // 2, n)):
        cuda.kv_append(arena, asarray(x[rows]), slots(cells[rows], size))
    got = asnumpy(cuda.kv_pack(arena, asarray(np.arange(n // size, dtype=np.int32))))
    want = encode_groups(c, x, c.group(dim))
    got = got[cells // size, cells % size]
    if c.family == Family.TRELLIS:
        assert (got == want).all(axis=-1).mean() > 0.99
        cost, least = (squared_error(c, x, each, c.group(dim)) for each in (got, want))
        assert worst_cost(cost, least) <= OTHER_PATHS and cost.sum() <= least.sum() * (1 + 1e-6)
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("name", TYPES)
def test_rows_of_padding_are_written_nowhere(name: str) -> None:
    c, every = codec(name), asarray(np.arange(2, dtype=np.int32))
    arena = cuda.kv_alloc(c, 2, 3, 64, 64)
    x = vectors("padding", c, "normal", 4, 3, 64)
    blocks, offsets = asarray(np.array([1, -1, 0, -1], np.int32)), asarray(np.array([63, 63, 0, 1], np.int32))
    cuda.kv_append(arena, asarray(x), Slots(blocks, offsets))
    got, want = asnumpy(cuda.kv_pack(arena, every)), np.zeros((2, 64, 3, c.packed_bytes(64)), np.uint8)
    want[1, 63], want[0, 0] = encode_groups(c, x, c.group(64))[[0, 2]]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("name", TYPES)
def test_steps_before_the_codes_are_those_of_kernels_of_their_own(name: str) -> None:
    """Bias, norm, rope and factors in the kernel that codes, on columns of a wider array."""
    c, rng, n, heads, dim = codec(name), seeded(name), 7, 2, 64
    wide = asarray(normal(rng, n, 5 * dim))
    x = wide[:, dim : 3 * dim].reshape(n, heads, dim)
    bias, factors, norm = (asarray(normal(rng, *shape)) for shape in ((heads, dim), (heads, dim), (dim,)))
    angles = Angles(asarray(normal(rng, n, 16)), asarray(normal(rng, n, 16)), False)
    places, every = slots(np.arange(3, 3 + n, dtype=np.int32), 64), asarray(np.zeros(1, np.int32))
    alone, k, apart = (cuda.kv_alloc(c, 1, heads, dim, 64) for _ in range(3))
    v, plain = (cuda.kv_alloc(codec("turbo3"), 1, heads, dim, 64, values=True) for _ in range(2))
    new, steps = New(x, bias, factors), KeySteps(norm, 1e-5, angles)
    write(alone, new, places, steps)
    write_both(LayerKV(k, v), new, New(x, factors=bias), places, steps)
    x = cupy().ascontiguousarray(x)
    cuda.kv_append(apart, cuda.rope(cuda.rms_norm(x + bias, norm, 1e-5), angles) * factors, places)
    cuda.kv_append(plain, x * bias, places)
    found = [asnumpy(cuda.kv_pack(a, every)) for a in (k, alone, apart, v, plain)]
    assert np.array_equal(found[0], found[1])
    # The mean square of a head is added up in another order.
    assert np.mean(found[0] != found[2]) < 0.01
    assert np.array_equal(found[3], found[4])


def test_arrays_of_others_are_refused() -> None:
    c, block = codec("q8_0"), asarray(np.zeros(1, np.int32))
    with pytest.raises(TypeError, match="another backend"):
        cuda.kv_read(ref.kv_alloc(c, 1, 1, 64, 64), block)
    arena = cuda.kv_alloc(c, 1, 1, 64, 64)
    with pytest.raises(TypeError, match="CuPy"):
        cuda.kv_read(arena, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="shape"):
        cuda.kv_append(arena, asarray(np.zeros((1, 1, 80), np.float32)), Slots(block, block))
    with pytest.raises(UnsupportedError, match="power of two from 64"):
        cuda.kv_alloc(c, 1, 1, 64, 32)
    with pytest.raises(ValueError, match="68 bytes"):
        cuda.decode(c, asarray(np.zeros((1, 67), np.uint8)), 64)
