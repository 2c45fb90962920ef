"""Storage of the cpu backend: golden bytes, resident layout and back, partial blocks."""

from __future__ import annotations

import dataclasses
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
from polykv.ref.codec import encode_groups, without_reserved
from polykv.types import Slots

NAMES = tuple(name for name, c in CODECS.items() if runs(load("cpu"), c))
DIMS = (16, 24, 32, 48, 64, 72, 80, 96, 100, 112, 128, 144, 176, 192, 256, 320, 512, 576)


# Types with golden bytes of other implementations (tests/golden/README.md); and those with known bytes of other heads.
OLD = ("q8_0", "q4_0", "turbo3")
UNKNOWN = ("f32", "f16", "bf16", "turbo3_tcq_n", "turbo2_tcq_n")
GOLDEN = tuple(name for name in NAMES if name not in UNKNOWN)
PADDED = tuple(name for name in NAMES if name in ("turbo3", "turbo2", "turbo4_ep", "turbo3_tcq", "turbo2_tcq"))


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("kind", ["normal", "student_t3", "outlier", "zeros", "constant"])
def test_golden_bytes(golden: Path, name: str, kind: str) -> None:
    x = np.load(golden / "formats/vectors.npz")[f"x_{kind}"]
    want = np.load(golden / f"formats/{'vectors' if name in OLD else 'tiers'}.npz")[f"{name}_{kind}"]
    c, got = codec(name), encode(codec(name), x)
    if c.rotated and kind == "constant":
        # After rotation they land on thresholds, so codes may differ; the error may not be larger.
        ours, theirs = decode(c, got, 256), decode(c, want, 256)
        assert ((ours - x) ** 2).sum() <= ((theirs - x) ** 2).sum() * (1 + 1e-5)
    else:
        assert np.array_equal(got, want)


@pytest.mark.parametrize("dim", [64, 80, 96, 192, 256, 512])
@pytest.mark.parametrize("name", PADDED)
def test_golden_padding(golden: Path, name: str, dim: int) -> None:
    x = np.load(golden / "formats/padding.npz")[f"x_{dim}"]
    with np.load(golden / f"formats/{'padding' if name == 'turbo3' else 'padding_tiers'}.npz") as z:
        want = z[f"{name}_{dim}"].reshape(*x.shape[:-1], -1)
        assert np.array_equal(encode(codec(name), x), want)
        if name == "turbo3":
            np.testing.assert_allclose(decode(codec(name), want, dim), z[f"turbo3_decoded_{dim}"], atol=2e-6)


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
        # Against 8 bits the rounding of the norm to fp16 counts, which another order of sums may turn over.
        bound = 0.02 if name == "turbo8" else 1e-6
        assert worst_cost(squared_error(c, x, flat, group), squared_error(c, x, want, group)) < bound
        if group == c.block:
            assert np.array_equal(flat, without_reserved(c, encode(c, x)))
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


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_stored_alike_alone_and_together(name: str) -> None:
    """In order, eight at a time where they are neighbours; in any order; one by one. 100 is no multiple of 8."""
    c, rng = codec(name), np.random.default_rng(2)
    for block, dim in ((8, 64), (24, 100), (64, 256)):
        t = np.concatenate([np.arange(3, 61), np.arange(90, 108), np.arange(61, 64)]).astype(np.int32)
        x = rng.standard_normal((len(t), 2, dim)).astype(np.float32)
        found = []
        for order in (np.split(np.arange(len(t)), [1, 40, 49]), [rng.permutation(len(t))], np.arange(len(t))[:, None]):
            arena = kv_alloc(c, -(-108 // block), 2, dim, block)
            for rows in order:
                kv_append(arena, x[rows], Slots(t[rows] // block, t[rows] % block))
            found.append(arena.fields["data"])
        assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_beyond_a_vector_is_read_or_written(name: str) -> None:
    c = codec(name)
    for dim in (40, 72, 90, 100, 130):
        around = np.full(dim + 64, np.nan, np.float32)
        x = around[16 : 16 + dim].reshape(1, 1, dim)
        x[:] = np.random.default_rng(dim).standard_normal(dim)
        arenas = [kv_alloc(c, 2, 1, dim, 8) for _ in range(2)]
        for arena, given_ in zip(arenas, (x, x.copy()), strict=True):
            kv_append(arena, given_, Slots(np.zeros(1, np.int32), np.full(1, 7, np.int32)))
            assert not arena.fields["data"][1].any()
        assert np.array_equal(arenas[0].fields["data"], arenas[1].fields["data"])
        size = c.exchange_bytes(dim)
        room = np.full(size + 64, 0xA5, np.uint8)
        encode(c, x, out=room[16 : 16 + size].reshape(1, 1, size))
        assert np.array_equal(room[16 : 16 + size], encode(c, x.copy()).reshape(-1))
        assert (room[:16] == 0xA5).all() and (room[16 + size :] == 0xA5).all()
        y = np.full(dim + 64, np.nan, np.float32)
        decode(c, room[16 : 16 + size].reshape(1, 1, size), dim, out=y[16 : 16 + dim].reshape(1, 1, dim))
        assert np.isfinite(y).sum() == dim


@pytest.mark.parametrize("dim", [1, 7, 20, 33])
def test_exchange_bytes_of_vectors_that_are_no_heads(dim: int) -> None:
    """What memory refuses, as it is too short or odd, files may hold."""
    ref, x = load("ref"), np.random.default_rng(dim).standard_normal((5, dim)).astype(np.float32)
    for c in (codec(name) for name in (*NAMES, "q4_0+r")):
        data = ref.encode(c, x)
        np.testing.assert_allclose(decode(c, data, dim), ref.decode(c, data, dim), rtol=0, atol=1e-5)
        bound = 0.02 if c.name == "turbo8" else 1e-6
        assert worst_cost(squared_error(c, x, encode(c, x), c.block), squared_error(c, x, data, c.block)) < bound


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


@pytest.mark.parametrize("name", [n for n in NAMES if codec(n).rotated])
def test_a_factor_on_norms_is_applied_once_when_encoding(name: str) -> None:
    c = dataclasses.replace(codec(name), alpha=1.04)
    x = np.random.default_rng(3).standard_normal((20, 128)).astype(np.float32)
    assert np.array_equal(encode(c, x), load("ref").encode(c, x))
    np.testing.assert_allclose(decode(c, encode(c, x), 128), decode(codec(name), encode(c, x), 128))


def test_blocks_cost_what_the_codec_says() -> None:
    """Bytes per value of a full block: code bits and scales, nothing else (within one cache line)."""
    for name in NAMES:
        for dim in (64, 80, 128, 256):
            assert kv_alloc(codec(name), 1, 1, dim, 64).block_nbytes == 64 * codec(name).packed_bytes(dim)
    assert kv_alloc(codec("turbo3"), 1, 1, 128, 64).block_nbytes == 128 * 64 * 3.125 / 8
    # A head of 64 is one rotation group of 64, not a padded one of 128.
    assert kv_alloc(codec("turbo3"), 1, 1, 64, 64).block_nbytes == 64 * 64 * 3.25 / 8
    assert kv_alloc(codec("turbo3"), 1, 1, 80, 64).block_nbytes == 80 * 64 * 3.2 / 8
    assert kv_alloc(codec("turbo3"), 1, 1, 72, 64).block_nbytes == 64 * (2 + 72 * 3 / 8)
    # Plain types in whole panels of 16.
    assert kv_alloc(codec("f16"), 1, 1, 72, 64).block_nbytes == 64 * 80 * 2
    for dim in (96, 112, 192, 320, 576):
        assert kv_alloc(codec("turbo3"), 1, 1, dim, 64).block_nbytes == 64 * codec("turbo3").packed_bytes(dim)


def test_tables_have_room_for_every_group() -> None:
    own = [g for g in range(1, 5000) if codec("turbo3").group(g) == g]
    assert max(own) == LONGEST and LARGEST_CORE == WIDEST


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="block size"):
        layout(codec("q8_0"), 64, 44)
    for dim in (14, 73):
        with pytest.raises(UnsupportedError, match="an even head_dim of at least 16"):
            layout(codec("q8_0"), dim, 64)
    for dim in (20, 28, 36):
        assert layout(codec("q4_0+r"), dim, 64) is not None
        with pytest.raises(UnsupportedError, match=f"8 at a time, and a head of {dim} is one group"):
            layout(codec("turbo3"), dim, 64)
    with pytest.raises(TypeError, match="another backend"):
        kv_read(load("ref").kv_alloc(codec("q8_0"), 1, 1, 64, 64), np.zeros(1, np.int32))
