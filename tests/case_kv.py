"""Cases of codecs and of cache storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from case_base import HEAD_DIMS, Arrays, Case, packed, poison, seeded, squared_error, stored, vectors

from polykv.cache.codecs import CODECS
from polykv.cache.codecs import codec as named
from polykv.ops import Ops
from polykv.types import Codec, KVArena, Slots

# Against 8 bits the rounding of the norm to fp16 counts, which another order of sums may turn over.
FINE = {"turbo8": 0.02}
# Ends the names of cases with arenas of V.
VALUES = "-values"
KINDS = ("normal", "student", "outlier", "huge", "tiny", "zeros", "constant")

# Scalar types in rotated space differ in nothing but the rotation.
TURNED = (named("q8_0+r"), named("q4_0+r"), named("q5_1+r"), named("iq4_nl+r"))


def tolerance(codec: Codec) -> float:
    """Of costs. Rotations differ in their last bits, which turns codes and fp16 scales that are close to the middle
    between two; next to the small errors of eight bits that shows."""
    return 5e-3 if codec in TURNED else FINE.get(codec.name, -1.0)


def cases() -> Iterator[Case]:
    for codec in (*CODECS.values(), *TURNED):
        for dim in HEAD_DIMS:
            yield encode(codec, "student", (63, 3, dim))
            yield decode(codec, (63, 3, dim))
            yield kv_read(codec, 2, dim, 64)
            yield kv_pack(codec, 2, dim, 64)
            yield kv_unpack(codec, 3, dim, 32)
            yield kv_append(codec, "normal", 63, 3, dim)
        for dim in (64, 80, 192, 256):
            yield kv_append(codec, "normal", 63, 3, dim, values=True)
            yield kv_read(codec, 2, dim, 64, values=True)
            yield kv_pack(codec, 2, dim, 64, values=True)
            yield kv_unpack(codec, 3, dim, 64, values=True)
        for kind in KINDS:
            for dim in (64, 128, 256):
                yield encode(codec, kind, (5, dim))
            yield kv_append(codec, kind, 5, 1, 64)
        yield encode(codec, "normal", (1000, 128))
        yield encode(codec, "normal", (128,))
        yield encode(codec, "normal", (0, 3, 64))
        yield decode(codec, (1, 128))
        yield decode(codec, (0, 3, 64))
        yield kv_append(codec, "normal", 1000, 1, 64)
        yield kv_append(codec, "normal", 1, 1, 256)
        yield kv_alloc(codec, 3, 80)
        yield kv_grow(codec, 3, 80)


def encode(codec: Codec, kind: str, shape: tuple[int, ...]) -> Case:
    x = vectors("encode", codec, kind, *shape)

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        out = np.full((*shape[:-1], codec.exchange_bytes(shape[-1])), 0xA5, np.uint8)
        return lambda: (ops.encode(codec, x, out=out),)

    name = f"{codec.name}-{kind}-{'x'.join(map(str, shape))}"
    return Case(
        "encode",
        name,
        prepare,
        cost=lambda got: squared_error(codec, x, got[0], codec.block),
        tolerance=tolerance(codec),
        storage=(codec, codec, shape[-1], 64),
    )


def decode(codec: Codec, shape: tuple[int, ...]) -> Case:
    def prepare(ops: Ops) -> Callable[[], Arrays]:
        data = stored("decode", codec, *shape)
        return lambda: (ops.decode(codec, data, shape[-1], out=poison(*shape)), ops.decode(codec, data, shape[-1]))

    return Case("decode", f"{codec.name}-{'x'.join(map(str, shape))}", prepare, storage=(codec, codec, shape[-1], 64))


def filled(
    ops: Ops, name: str, codec: Codec, n_blocks: int, n_kv: int, dim: int, size: int, values: bool = False
) -> KVArena:
    """An arena whose blocks hold the same codes in every backend."""
    arena = ops.kv_alloc(codec, n_blocks, n_kv, dim, size, values=values)
    ops.kv_unpack(arena, np.arange(n_blocks, dtype=np.int32), packed(name, codec, n_blocks, size, n_kv, dim))
    return arena


def kv_alloc(codec: Codec, n_kv: int, dim: int) -> Case:
    def prepare(ops: Ops) -> Callable[[], Arrays]:
        def call() -> Arrays:
            arena = ops.kv_alloc(codec, 5, n_kv, dim, 64)
            facts = [
                arena.n_blocks,
                arena.n_kv,
                arena.head_dim,
                arena.block_size,
                arena.block_nbytes * 5 - arena.nbytes,
            ]
            return np.array(facts), ops.kv_read(arena, np.array([4, 0], np.int32))

        return call

    return Case("kv_alloc", f"{codec.name}-{n_kv}x{dim}", prepare, storage=(codec, codec, dim, 64))


def kv_grow(codec: Codec, n_kv: int, dim: int) -> Case:
    """Arenas of two sizes grow, one is grown to what it has, and one is cut."""

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        arenas = [filled(ops, f"grow{n}", codec, n, n_kv, dim, 64) for n in (1, 3, 5, 7)]
        kept = list(arenas)

        def call() -> Arrays:
            ops.kv_grow(arenas, 5)
            facts = [(a.n_blocks, a is b, a.block_nbytes * 5 - a.nbytes) for a, b in zip(arenas, kept, strict=True)]
            every = np.arange(5, dtype=np.int32)
            old = [ops.kv_pack(a, every[:n]) for a, n in zip(arenas, (1, 3, 5, 5), strict=True)]
            new = [ops.kv_read(a, every[n:]) for a, n in zip(arenas, (1, 3), strict=False)]
            return np.array(facts), *old, *new

        return call

    return Case("kv_grow", f"{codec.name}-{n_kv}x{dim}", prepare, storage=(codec, codec, dim, 64))


def kv_append(codec: Codec, kind: str, n: int, n_kv: int, dim: int, values: bool = False) -> Case:
    """Rows go to scattered cells in two steps, the second overwriting part of the first; then all are read back."""
    x = vectors("append", codec, kind, n, n_kv, dim)
    n_blocks = -(-n // 64) + 1

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        cells = seeded(f"{n}-{dim}").permutation(n_blocks * 64)[:n]
        blocks, offsets = (cells // 64).astype(np.int32), (cells % 64).astype(np.int32)
        half = n // 2
        arena = ops.kv_alloc(codec, n_blocks, n_kv, dim, 64, values=values)

        def call() -> Arrays:
            ops.kv_append(arena, x[::-1].copy(), Slots(blocks, offsets))
            ops.kv_append(arena, x[:half], Slots(blocks[:half], offsets[:half]))
            ops.kv_append(arena, x[half:], Slots(blocks[half:], offsets[half:]))
            return (ops.kv_pack(arena, np.arange(n_blocks, dtype=np.int32))[blocks, offsets],)

        return call

    name = f"{codec.name}-{kind}-{n}x{n_kv}x{dim}{VALUES * values}"
    return Case(
        "kv_append",
        name,
        prepare,
        cost=lambda got: squared_error(codec, x, got[0], codec.group(dim)),
        tolerance=tolerance(codec),
        storage=(codec, codec, dim, 64),
    )


def kv_read(codec: Codec, n_kv: int, dim: int, size: int, values: bool = False) -> Case:
    def prepare(ops: Ops) -> Callable[[], Arrays]:
        arena = filled(ops, "read", codec, 4, n_kv, dim, size, values)
        return lambda: (
            ops.kv_read(arena, np.array([3, 1, 1], np.int32)),
            ops.kv_read(arena, np.zeros(0, np.int32)),
        )

    name = f"{codec.name}-{n_kv}x{dim}-block{size}{VALUES * values}"
    return Case("kv_read", name, prepare, storage=(codec, codec, dim, size))


def kv_pack(codec: Codec, n_kv: int, dim: int, size: int, values: bool = False) -> Case:
    def prepare(ops: Ops) -> Callable[[], Arrays]:
        arena = filled(ops, "pack", codec, 4, n_kv, dim, size, values)
        return lambda: (
            ops.kv_pack(arena, np.array([2, 0, 3], np.int32)),
            ops.kv_pack(arena, np.zeros(0, np.int32)),
        )

    name = f"{codec.name}-{n_kv}x{dim}-block{size}{VALUES * values}"
    return Case("kv_pack", name, prepare, storage=(codec, codec, dim, size))


def kv_unpack(codec: Codec, n_kv: int, dim: int, size: int, values: bool = False) -> Case:
    """Overwrite two of four blocks; the others keep their codes."""

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        data = packed("unpack", codec, 2, size, n_kv, dim)
        everything = np.arange(4, dtype=np.int32)

        def call() -> Arrays:
            arena = filled(ops, "before", codec, 4, n_kv, dim, size, values)
            ops.kv_unpack(arena, np.array([3, 1], np.int32), data)
            # A round trip through bytes changes nothing.
            ops.kv_unpack(arena, everything, ops.kv_pack(arena, everything))
            return (ops.kv_pack(arena, everything),)

        return call

    name = f"{codec.name}-{n_kv}x{dim}-block{size}{VALUES * values}"
    return Case("kv_unpack", name, prepare, storage=(codec, codec, dim, size))
