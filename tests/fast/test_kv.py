"""Storage of the cpu backend: golden bytes, resident layout and back, partial blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agreement import worst_cost
from case_base import runs, squared_error
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.cache.codecs import CODECS, codec
from polykv.errors import UnsupportedError
from polykv.fast.cpu import decode, encode, kv_alloc, kv_append, kv_pack, kv_read, kv_unpack
from polykv.fast.cpu.kv_layout import LONGEST, WIDEST, layout
from polykv.hadamard import LARGEST_CORE
from polykv.ops import load
from polykv.ref.codec import encode_groups
from polykv.types import Slots

NAMES = tuple(name for name, c in CODECS.items() if runs(load("cpu"), c))
DIMS = (16, 32, 48, 64, 80, 96, 112, 128, 144, 176, 192, 256, 320, 512, 576)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "turbo3"])
@pytest.mark.parametrize("kind", ["normal", "student_t3", "outlier", "zeros"])
def test_golden_bytes(golden: Path, name: str, kind: str) -> None:
    with np.load(golden / "formats/vectors.npz") as z:
        assert np.array_equal(encode(codec(name), z[f"x_{kind}"]), z[f"{name}_{kind}"])


def test_golden_values_of_flat_vectors(golden: Path) -> None:
    """After rotation they land on thresholds, so codes may differ; the error may not be larger."""
    with np.load(golden / "formats/vectors.npz") as z:
        x, c = z["x_constant"], codec("turbo3")
        ours, theirs = (decode(c, b, 256) for b in (encode(c, x), z["turbo3_constant"]))
    assert ((ours - x) ** 2).sum() <= ((theirs - x) ** 2).sum() * (1 + 1e-5)


@pytest.mark.parametrize("dim", [64, 80, 96, 192, 256, 512])
def test_golden_padding(golden: Path, dim: int) -> None:
    with np.load(golden / "formats/padding.npz") as z:
        want = z[f"turbo3_{dim}"].reshape(8, 3, -1)
        assert np.array_equal(encode(codec("turbo3"), z[f"x_{dim}"]), want)
        np.testing.assert_allclose(decode(codec("turbo3"), want, dim), z[f"turbo3_decoded_{dim}"], atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", DIMS)
def test_resident_and_packed_hold_the_same(name: str, dim: int) -> None:
    """Packed bytes are those of ref; unpack and read agree with them; other blocks stay untouched."""
    c, rng, ref = codec(name), np.random.default_rng(dim), load("ref")
    group = c.group(dim)
    for block in (8, 32, 40, 64, 96):
        arena = kv_alloc(c, 4, 2, dim, block)
        x = rng.standard_normal((2 * block, 2, dim)).astype(np.float32) * 3
        order = rng.permutation(2 * block).astype(np.int32)
        ids = np.array([3, 1], np.int32)
        kv_append(arena, x[order], Slots(ids[order // block], order % block))
        packed = kv_pack(arena, ids)
        flat = packed.reshape(2 * block, 2, -1)
        want = encode_groups(c, x, group)
        assert worst_cost(squared_error(c, x, flat, group), squared_error(c, x, want, group)) < 1e-6
        if group == c.block:
            assert np.array_equal(flat, encode(c, x))
            assert np.array_equal(kv_read(arena, ids).reshape(x.shape), decode(c, encode(c, x), dim))
        theirs = ref.kv_alloc(c, 4, 2, dim, block)
        ref.kv_unpack(theirs, ids, packed)
        np.testing.assert_allclose(kv_read(arena, ids), ref.kv_read(theirs, ids), rtol=0, atol=1e-5)
        other = kv_alloc(c, 4, 2, dim, block)
        kv_unpack(other, ids, packed)
        assert np.array_equal(other.fields["data"], arena.fields["data"])
        assert not arena.fields["data"][[0, 2]].any()


@pytest.mark.parametrize("name", NAMES)
def test_overwriting_a_cell_leaves_its_neighbours(name: str) -> None:
    c, rng = codec(name), np.random.default_rng(1)
    arena = kv_alloc(c, 1, 1, 64, 64)
    cells = np.arange(64, dtype=np.int32)
    x = rng.standard_normal((64, 1, 64)).astype(np.float32)
    kv_append(arena, x, Slots(cells * 0, cells))
    for t in (0, 31, 63):
        x[t] = rng.standard_normal((1, 64))
        kv_append(arena, x[t : t + 1], Slots(cells[:1] * 0, cells[t : t + 1]))
    want = kv_alloc(c, 1, 1, 64, 64)
    kv_append(want, x, Slots(cells * 0, cells))
    assert np.array_equal(kv_pack(arena, cells[:1]), kv_pack(want, cells[:1]))


@given(st.sampled_from(NAMES), st.floats(-38, 38), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_any_magnitude_encodes_finitely_and_like_ref(name: str, exponent: float, seed: int) -> None:
    c, rng = codec(name), np.random.default_rng(seed)
    x = (rng.standard_normal((4, 64)) * 10.0**exponent / 4).astype(np.float32)
    y = decode(c, encode(c, x), 64)
    assert np.isfinite(y).all()
    with np.errstate(all="ignore"):
        want = load("ref").decode(c, load("ref").encode(c, x), 64)
    if c.rotated and exponent > 16:
        # Both clip: what is left are flat vectors, whose rotation lands on thresholds (see the test above).
        return
    # Where ref stores what it was given, so do we; beyond the range of a float16 scale both saturate.
    np.testing.assert_allclose(y, want, rtol=2e-3, atol=np.abs(want).max() * 2e-3)


def test_blocks_cost_what_the_codec_says() -> None:
    """Bytes per value of a full block: code bits and scales, nothing else (within one cache line)."""
    for name, bits in (("f32", 32), ("f16", 16), ("q8_0", 8.5), ("q4_0", 4.5)):
        assert kv_alloc(codec(name), 1, 1, 128, 64).block_nbytes == 128 * 64 * bits / 8
    assert kv_alloc(codec("turbo3"), 1, 1, 128, 64).block_nbytes == 128 * 64 * 3.125 / 8
    # A head of 64 is one rotation group of 64, not a padded one of 128.
    assert kv_alloc(codec("turbo3"), 1, 1, 64, 64).block_nbytes == 64 * 64 * 3.25 / 8
    assert kv_alloc(codec("turbo3"), 1, 1, 80, 64).block_nbytes == 80 * 64 * 3.2 / 8
    for dim in (96, 112, 192, 320, 576):
        assert kv_alloc(codec("turbo3"), 1, 1, dim, 64).block_nbytes == 64 * codec("turbo3").packed_bytes(dim)


def test_tables_have_room_for_every_group() -> None:
    own = [g for g in range(1, 5000) if codec("turbo3").group(g) == g]
    assert max(own) == LONGEST and LARGEST_CORE == WIDEST


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="block size"):
        layout(codec("q8_0"), 64, 44)
    with pytest.raises(UnsupportedError, match="head_dim"):
        layout(codec("q8_0"), 20, 64)
    with pytest.raises(TypeError, match="another backend"):
        kv_read(load("ref").kv_alloc(codec("q8_0"), 1, 1, 64, 64), np.zeros(1, np.int32))
