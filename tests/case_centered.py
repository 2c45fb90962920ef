"""Cases of cells that are exact first: coding complete units, attention over codes and exact cells, the whole block."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from case_attention import layer
from case_base import Arrays, Case, normal, poison, seeded
from case_kv import filled
from case_model import GEMMA, LLAMA, STEP, Shape, angles_of, attention_weights

from polykv import ref
from polykv.cache.codecs import codec, exact_codecs, parse_tier
from polykv.ops import Ops
from polykv.types import I32, UNIT, Activations, Codec, KVArena, LayerKV, Seals, Segment, Segments, Slots

CENTERED = ("turbo3+c", "q8_0+c", "q4_0+r+c", "f16+c", "f32+c", "turbo4+c", "turbo2_tcq+c", "q8_0", "turbo3")
# What values are coded in, from cells of 8 bits.
VALUES = ("q8_0", "turbo3")
TIERS = ("turbo3+c/turbo3", "q8_0+c/q4_0", "q4_0+r+c/q8_0+r", "f32+c/f32", "f16/f16", "turbo4+c/turbo2_tcq")
# Cells of a block of exact ones, as the CPU has them; a device has whole units (BLOCKS64 ends the names of such cases).
SIZE = 8
BLOCKS64 = "-blocks64"
SINK = 4


def cases() -> Iterator[Case]:
    yield from of_blocks(SIZE)
    yield from of_blocks(UNIT)


def of_blocks(size: int) -> Iterator[Case]:
    """Cases with exact cells in blocks of this size."""
    for name in CENTERED:
        for dim, n_kv in ((64, 3), (256, 1), (72, 2)):
            yield kv_seal(codec(name), n_kv, dim, size=size)
            if name in VALUES:
                yield kv_seal(codec(name), n_kv, dim, "q8_0", size=size)
            if size == UNIT:
                yield kv_pack(codec(name), n_kv, dim)
    for tier in TIERS:
        yield attend(tier, (9, 3), 64, size=size)
        yield attend(tier, (4, 1), 256, window=100, size=size)
        yield attend(tier, (4, 4), 72, softcap=20.0, size=size)
    for shape in (LLAMA, GEMMA):
        for tier in ("turbo3+c/turbo3", "q8_0+c/q8_0"):
            yield attention_block(shape, tier, size)


def named(name: str, size: int) -> str:
    """The name of a case with exact cells in such blocks."""
    return name if size == SIZE else name + BLOCKS64


def kv_seal(c: Codec, n_kv: int, dim: int, cells: str = "f16", size: int = SIZE) -> Case:
    """Three units, the first of a sequence with sinks; what was offset stays offset."""
    name = f"{c.name}-{n_kv}x{dim}" + ("" if cells == "f16" else f"-from-{cells}")

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        exact, seals = _exact(ops, name, n_kv, dim, cells, size)
        codes = ops.kv_alloc(c, 4, n_kv, dim, UNIT)

        def call() -> Arrays:
            ops.kv_seal(codes, exact, seals)
            return (ops.kv_pack(codes, seals.coded),)

        return call

    def cost(got: Arrays) -> np.ndarray:
        """Per vector. Means differ in their last bits, which moves the other values of a dim by a little."""
        exact, seals = _exact(ref, name, n_kv, dim, cells, size)  # type: ignore[arg-type]
        codes = ref.kv_alloc(c, 3, n_kv, dim, UNIT)
        blocks = np.arange(3, dtype=np.int32)
        ref.kv_unpack(codes, blocks, got[0])
        want = ref.kv_read(exact, seals.exact.reshape(-1)).reshape(3, UNIT, n_kv, dim).astype(np.float64)
        return np.square(ref.kv_read(codes, blocks) - want).sum(axis=-1) + 1e-9

    return Case("kv_seal", named(name, size), prepare, cost=cost, tolerance=0.05, storage=(c, codec(cells), dim, UNIT))


def _exact(ops: Ops, name: str, n_kv: int, dim: int, cells: str = "f16", size: int = SIZE) -> tuple[KVArena, Seals]:
    per, rng = UNIT // size, seeded(name)
    arena = ops.kv_alloc(codec(cells), 3 * per + 2, n_kv, dim, size)
    ids = rng.permutation(3 * per + 2)[: 3 * per].astype(np.int32)
    x = normal(rng, 3 * UNIT, n_kv, dim) + 5 * normal(rng, n_kv, dim)
    ops.kv_append(arena, x, Slots(np.repeat(ids, size), np.tile(np.arange(size, dtype=np.int32), 3 * per)))
    return arena, Seals(ids.reshape(3, per), np.array([2, 0, 3], np.int32), np.array([SINK, 0, 0], np.int32))


def kv_pack(c: Codec, n_kv: int, dim: int) -> Case:
    """Packed bytes with means, into other blocks and out again, and read."""

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        exact, seals = _exact(ref, c.name, n_kv, dim)  # type: ignore[arg-type]
        codes = ref.kv_alloc(c, 4, n_kv, dim, UNIT)
        ref.kv_seal(codes, exact, seals)
        data = ref.kv_pack(codes, seals.coded)
        arena = ops.kv_alloc(c, 5, n_kv, dim, UNIT)
        blocks = np.array([4, 1, 2], np.int32)

        def call() -> Arrays:
            ops.kv_unpack(arena, blocks, data)
            return (ops.kv_pack(arena, np.array([1, 4, 0], np.int32)),)

        return call

    return Case("kv_pack", f"means-{c.name}-{n_kv}x{dim}", prepare, storage=(c, codec("f16"), dim, UNIT))


def plan(rng: np.random.Generator, start: int, rows: int, size: int) -> tuple[Segments, Slots, int, int]:
    """One sequence, rows at positions start, start + 1, ...: what they read, where they write, blocks of both kinds."""
    end, positions = start + rows, np.arange(start, start + rows, dtype=np.int32)
    coded = rng.permutation(end // UNIT + 1).astype(np.int32)
    exact = rng.permutation(-(-end // size)).astype(np.int32)
    codes, leads, others = [], [], []
    for unit in range(start // UNIT, (end - 1) // UNIT + 1):
        here = np.flatnonzero(positions // UNIT == unit).astype(np.int32)
        first, last = unit * UNIT, int(positions[here[-1]]) + 1
        others.append(Segment(exact[first // size : -(-last // size)], first, last - first, here))
        if unit:
            codes.append(Segment(coded[:unit], 0, first, here))
            leads.append(Segment(exact[:1], 0, SINK, here))
    units: I32 = np.arange(start // UNIT, end // UNIT, dtype=np.int32)
    blocks = exact[units[:, None] * (UNIT // size) + np.arange(UNIT // size)]
    seals = Seals(blocks, coded[units], np.where(units == 0, SINK, 0).astype(np.int32))
    slots = Slots(exact[positions // size], positions % size, seals)
    segments = Segments.of(codes, positions, SINK, Segments.of([*leads, *others], positions))
    return segments, slots, len(coded), len(exact)


def cells_of(ops: Ops, tier: str, n_coded: int, n_exact: int, n_kv: int, dim: int, size: int) -> LayerKV:
    half, pair = codec("f16"), parse_tier(tier)
    cells = exact_codecs(pair)
    exact = LayerKV(
        filled(ops, "ek", cells[0], n_exact, n_kv, dim, size),
        filled(ops, "ev", cells[1], n_exact, n_kv, dim, size, values=True),
    )
    if not pair.k.centered:
        codes = layer(ops, tier, n_coded, n_kv, dim, UNIT)
        return LayerKV(codes.k, codes.v, exact)
    source = ref.kv_alloc(half, n_coded, n_kv, dim, UNIT)
    rng, blocks = seeded(tier), np.arange(n_coded, dtype=np.int32)
    x = normal(rng, n_coded * UNIT, n_kv, dim) + 2 * normal(rng, n_kv, dim)
    ref.kv_append(source, x, Slots(np.repeat(blocks, UNIT), np.tile(np.arange(UNIT, dtype=np.int32), n_coded)))
    packed = ref.kv_alloc(pair.k, n_coded, n_kv, dim, UNIT)
    ref.kv_seal(packed, source, Seals(blocks[:, None], blocks, np.zeros(n_coded, np.int32)))
    k = ops.kv_alloc(pair.k, n_coded, n_kv, dim, UNIT)
    ops.kv_unpack(k, blocks, ref.kv_pack(packed, blocks))
    return LayerKV(k, filled(ops, "v", pair.v, n_coded, n_kv, dim, UNIT, values=True), exact)


def attend(
    tier: str,
    heads: tuple[int, int],
    dim: int,
    window: int = 0,
    softcap: float = 0.0,
    size: int = SIZE,
    span: tuple[int, int] = (570, 81),
) -> Case:
    """span: position of the first row, and rows."""
    name = f"staged-{tier.replace('/', '+')}-h{heads[0]}g{heads[1]}-d{dim}-w{window}-c{softcap:g}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        segments, _, n_coded, n_exact = plan(seeded(name), *span, size)
        kv = cells_of(ops, tier, n_coded, n_exact, heads[1], dim, size)
        q = normal(seeded(name), span[1], heads[0], dim)
        scale = dim**-0.5
        return lambda: ops.attend(q, segments, kv, scale=scale, window=window, softcap=softcap, out=poison(*q.shape))

    pair = parse_tier(tier)
    return Case("attend", named(name, size), prepare, storage=(pair.k, pair.v, dim, UNIT))


def attention_block(shape: Shape, tier: str, size: int) -> Case:
    """A prompt that completes two units."""
    name = f"staged-{shape.name}-{tier.replace('/', '+')}"

    def prepare(ops: Ops) -> Callable[[], Arrays]:
        segments, slots, n_coded, n_exact = plan(seeded(name), 50, 90, size)
        w = attention_weights(shape)
        kv = cells_of(ops, tier, n_coded, n_exact, shape.n_kv, shape.head_dim, size)
        h0 = normal(seeded(name), 90, shape.embd)
        angles = angles_of(segments.positions, shape)

        def call() -> Arrays:
            h = h0.copy()
            ops.attention_block(h, w, kv, angles, segments, slots, activations=Activations.F32)
            return (h - h0,)

        return call

    pair = parse_tier(tier)
    storage = pair.k, pair.v, shape.head_dim, UNIT
    return Case("attention_block", named(name, size), prepare, tolerance=STEP, storage=storage)
