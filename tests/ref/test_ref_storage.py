"""Storage: packed bytes, the same codes as the exchange layout where groups are 128 values, else no padding."""

from __future__ import annotations

import numpy as np
import pytest
from case_base import HEAD_DIMS, normal, seeded

from polykv import ref
from polykv.cache.codecs import CODECS, codec
from polykv.ref.codec import decode_groups, encode_groups
from polykv.ref.fwht import hadamard
from polykv.ref.storage import enter_stored_space, leave_stored_space
from polykv.types import UNIT, Seals, Slots

ALL = [*HEAD_DIMS, 32, 72, 104]
every = pytest.mark.parametrize(("name", "dim"), [(n, d) for n in CODECS for d in ALL])


def scattered(n: int, n_blocks: int, size: int) -> Slots:
    cells = np.random.default_rng(n).permutation(n_blocks * size)[:n]
    return Slots((cells // size).astype(np.int32), (cells % size).astype(np.int32))


@every
def test_appended_codes_are_those_of_the_codec(name: str, dim: int) -> None:
    x = normal(seeded(name), 150, 2, dim)
    x[::7] = 0
    arena, slots = ref.kv_alloc(codec(name), 4, 2, dim, 64), scattered(150, 4, 64)
    ref.kv_append(arena, x, slots)
    packed = ref.kv_pack(arena, np.arange(4, dtype=np.int32))
    c = codec(name)
    assert packed.shape == (4, 64, 2, c.packed_bytes(dim))
    assert np.array_equal(packed[slots.blocks, slots.offsets], encode_groups(c, x, c.group(dim)))


@every
def test_read_decodes(name: str, dim: int) -> None:
    x = normal(seeded(name), 64, 3, dim)
    arena = ref.kv_alloc(codec(name), 2, 3, dim, 64)
    ref.kv_append(arena, x, Slots(np.ones(64, np.int32), np.arange(64, dtype=np.int32)))
    got, c = ref.kv_read(arena, np.array([1], np.int32))[0], codec(name)
    if not c.rotated or c.group(dim) == 128:
        want = ref.decode(c, ref.encode(c, x), dim)
    else:
        # Rotated by a matrix, not by butterflies.
        g = c.group(dim)
        y = decode_groups(c, encode_groups(c, x, g), dim, g)
        s1, s2 = c.signs(g)
        matrix = np.diag(s1) @ hadamard(np.eye(g)) @ np.diag(s2) / np.sqrt(g)
        want = (y.reshape(*x.shape[:-1], dim // g, g) @ matrix.T).reshape(x.shape)
    assert np.allclose(got, want, rtol=0, atol=2e-6)
    assert not ref.kv_read(arena, np.array([0], np.int32)).any()


@every
def test_pack_and_unpack_lose_nothing(name: str, dim: int) -> None:
    x = normal(seeded(name), 128, 2, dim)
    x[5], x[100, 1] = 0, 1e-9
    a, b = (ref.kv_alloc(codec(name), 4, 2, dim, 64) for _ in range(2))
    ref.kv_append(a, x, scattered(128, 4, 64))
    blocks, others = np.array([0, 1, 2, 3], np.int32), np.array([3, 0, 2, 1], np.int32)
    data = ref.kv_pack(a, blocks)
    ref.kv_unpack(b, others, data)
    for key, field in a.fields.items():
        assert np.array_equal(field[blocks], b.fields[key][others])
    assert np.array_equal(ref.kv_pack(b, others), data)


def test_small_heads_take_no_bytes_for_padding() -> None:
    def per_vector(dim: int) -> int:
        arena = ref.kv_alloc(codec("turbo3"), 3, 2, dim, 64)
        assert arena.nbytes == sum(a.nbytes for a in arena.fields.values()) == 3 * arena.block_nbytes
        return arena.nbytes // (3 * 64 * 2)

    bytes_of = {d: per_vector(d) for d in (16, 32, 64, 72, 80, 96, 104, 128, 192, 256, 512)}
    assert bytes_of == {16: 8, 32: 14, 64: 26, 72: 29, 80: 32, 96: 38, 104: 50, 128: 50, 192: 74, 256: 100, 512: 200}
    assert codec("turbo3").exchange_bytes(64) == 50
    # Reserved bytes exist in the exchange layout only.
    assert [(codec(n).packed_bytes(128), codec(n).exchange_bytes(128)) for n in ("turbo4", "turbo3_tcq")] == [
        (66, 68),
        (51, 52),
    ]


def test_other_cells_keep_their_bytes() -> None:
    arena = ref.kv_alloc(codec("q8_0"), 2, 1, 64, 32)
    data = np.random.default_rng(0).integers(0, 255, (2, 32, 1, 68), dtype=np.uint8)
    both = np.array([0, 1], np.int32)
    ref.kv_unpack(arena, both, data)
    ref.kv_append(arena, np.ones((1, 1, 64), np.float32), Slots(both[1:], np.array([31], np.int32)))
    after = ref.kv_pack(arena, both)
    assert not np.array_equal(after[1, 31], data[1, 31])
    after[1, 31] = data[1, 31]
    assert np.array_equal(after, data)


@pytest.mark.parametrize("dim", (64, 80, 256))
@pytest.mark.parametrize("name", ("turbo3+c", "q8_0+c", "q4_0+r+c"))
def test_means_are_q8_0_in_the_space_of_the_codes(name: str, dim: int) -> None:
    """Sinks are no part of them, and what their rounding leaves is in the codes."""
    c, whole, q8, unit = codec(name), codec("f32"), codec("q8_0"), np.zeros(1, np.int32)
    x = normal(seeded(name), UNIT, 2, dim) + 3 * normal(seeded(str(dim)), 2, dim)
    exact, codes = ref.kv_alloc(whole, 1, 2, dim, UNIT), ref.kv_alloc(c, 1, 2, dim, UNIT)
    ref.kv_append(exact, x, Slots(np.zeros(UNIT, np.int32), np.arange(UNIT, dtype=np.int32)))
    ref.kv_seal(codes, exact, Seals(unit[:, None], unit, np.array([5], np.int32)))
    mean = x[5:].astype(np.float64).mean(axis=0)
    inside = enter_stored_space(codes, mean).astype(np.float32)
    want = encode_groups(q8, inside, 32)
    got = codes.fields["means"][0]
    assert got.shape[-1] == c.mean_bytes(dim) >= want.shape[-1]
    assert np.array_equal(got[:, : want.shape[-1]], want) and not got[:, want.shape[-1] :].any()
    kept = leave_stored_space(codes, decode_groups(q8, want, c.stored_dim(dim), 32))
    back, plain = ref.kv_alloc(codec(name.removesuffix("+c")), 1, 2, dim, UNIT), np.arange(UNIT, dtype=np.int32)
    ref.kv_append(back, x - kept.astype(np.float32), Slots(np.zeros(UNIT, np.int32), plain))
    assert np.allclose(ref.kv_read(codes, unit), ref.kv_read(back, unit) + kept, atol=1e-5)
