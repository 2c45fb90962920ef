"""Which kernels are shipped: every file with every set of defines that operations ask for.

The test suite compiles them all for every architecture of ARCHITECTURES, on machines without a GPU too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from polykv.fast.cuda.attend_config import config
from polykv.fast.cuda.attend_run import MERGE_THREADS
from polykv.fast.cuda.forms import LANES, SEARCH, size_defines
from polykv.fast.cuda.fwht import SIZES
from polykv.fast.cuda.glu import GATES
from polykv.fast.cuda.layout import KINDS, Kind, slices_of
from polykv.fast.cuda.lift import F16, file_of
from polykv.fast.cuda.lift import defines as lift_defines
from polykv.fast.cuda.linear_int8 import (
    FEW_ROWS,
    TILE,
    TILE_GROUPS,
    TILE_PAIRS,
    TILE_ROWS,
    TILE_WARPS,
    few_defines,
    tile_defines,
)
from polykv.fast.cuda.linear_staged import BYTES as STAGED
from polykv.fast.cuda.linear_staged import cut
from polykv.fast.cuda.prefill_config import config as prefill_config
from polykv.fast.cuda.shared_config import TYPES as SHARED_TYPES
from polykv.fast.cuda.shared_config import shared_config
from polykv.fast.cuda.shared_run import ARCH
from polykv.fast.cuda.source import Define
from polykv.fast.cuda.weights import FIELDS, FLOATS, type_name
from polykv.types import WEIGHT_BLOCK, Family

# Ampere, Hopper, Blackwell.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

# Two blocks on a multiprocessor leave 128 registers a thread: with the sums of 16 or 32 rows of x, the last few words
# of some types go to memory, once for a thousand weights or more.
TILE_SPILLS = {1: 0, 8: 0, 16: 64, 24: 96, 32: 288}
# Of more than 12 warps a thread has 128 registers: addresses of Q4_K and Q6_K go to memory, once for 128 columns.
STAGED_SPILLS = 96


@dataclass(frozen=True)
class Shipped:
    """One kernel: function `entry` of kernels/`file`, specialised. spills: bytes of registers that may go to memory.
    others: further entries of the same program. architectures: what it is compiled for."""

    file: str
    entry: str
    defines: dict[str, Define] = field(default_factory=dict)
    spills: int = 0
    others: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ARCHITECTURES

    def __str__(self) -> str:
        return " ".join([self.entry, *(f"{name}={value}" for name, value in sorted(self.defines.items()))])


def shipped() -> Iterator[Shipped]:
    """All kernels."""
    yield from _weights()
    yield from _linear()
    yield from _staged()
    yield from _elementwise()
    yield from _attention()
    yield from _prefill()
    yield from _shared()
    yield from _cache()
    yield from _steps()


def _weights() -> Iterator[Shipped]:
    for half in (0, 1):
        for kind in FIELDS:
            defines: dict[str, Define] = {"WEIGHT_TYPE": type_name(kind), "OUTPUT_HALF": half}
            yield Shipped("dequantize.cu", "dequantize_rows", defines)
        for kind in FLOATS:
            defines = {"WEIGHT_FLOAT": type_name(kind), "OUTPUT_HALF": half}
            yield Shipped("dequantize_plain.cu", "dequantize_rows", defines)


def _linear() -> Iterator[Shipped]:
    for tiles in (0, 1):
        yield Shipped("quantize.cu", "quantize_rows", {"QUANTIZE_TILES": tiles})
    for i, kind in enumerate(FIELDS):
        # Rows of blocks of 256 values are always whole tiles.
        for rows in FEW_ROWS if WEIGHT_BLOCK[kind][0] < TILE else ():
            yield Shipped("linear_few.cu", "linear_few", few_defines(kind, rows))
        # Rows change how often the same is done; every type at three numbers of them, or at two, and other kernels too.
        few = (TILE_ROWS[i % 2], TILE_ROWS[-1]) if kind in STAGED else (*TILE_ROWS[i % 2 :: 2], TILE_ROWS[-1])
        for rows in sorted(set(few)):
            # Groups change addresses, not what a lane holds.
            sizes = [(TILE_WARPS[0], 1), (TILE_WARPS[1], TILE_GROUPS[0])]
            for warps, groups in sizes if kind in TILE_PAIRS else sizes[:1]:
                defines = tile_defines(kind, rows, warps, groups)
                yield Shipped("linear_tiles.cu", "linear_tiles", defines, TILE_SPILLS[rows])
        yield Shipped("linear_few_f32.cu", "linear_few_f32", {"WEIGHT_TYPE": type_name(kind)})
    for kind in FLOATS:
        yield Shipped("linear_few_plain.cu", "linear_few_plain", {"WEIGHT_FLOAT": type_name(kind)})
    for int8 in (0, 1):
        yield Shipped("rounded.cu", "round_rows", {"ROUND_INT8": int8})
    yield Shipped("scale_rows.cu", "scale_rows")


def _staged() -> Iterator[Shipped]:
    """A wide matrix and a narrow one on Hopper, whose columns two blocks share, and a narrow one on Ampere."""
    later = ARCHITECTURES[1:]
    for i, kind in enumerate(STAGED):
        places = (
            (32, 28672, 132, SHARED, True, later),
            (8 + 8 * (i % 3), 4096, 132, SHARED, True, later),
            (24 - 8 * (i % 3), 4096, 108, 164 << 10, False, ARCHITECTURES),
        )
        for rows, height, *machine, architectures in places:
            made = cut(kind, height, 4096, *machine)
            assert made is not None, "all of them have room for it"
            defines = made.defines(kind, rows)
            yield Shipped("linear_staged.cu", "linear_staged", defines, STAGED_SPILLS, architectures=architectures)


def _elementwise() -> Iterator[Shipped]:
    yield Shipped("norm.cu", "rms_norm")
    for interleaved in (0, 1):
        yield Shipped("rope.cu", "rope", {"ROPE_INTERLEAVED": interleaved})
    for gate in GATES.values():
        yield Shipped("glu.cu", "glu", {"GLU_GATE": gate})
    for size in SIZES:
        yield Shipped("fwht.cu", "fwht", {"FWHT_SIZE": size})
    yield Shipped("penalize.cu", "penalized")
    for file in ("fwht_any", "merge", "softcap", "scatter", "greedy"):
        yield Shipped(f"{file}.cu", file)
    # Blocks of 1024 threads leave 64 registers a thread.
    yield Shipped("sample.cu", "sample", spills=64)


# Blocks of 12 and 16 warps leave 168 and 128 registers a thread, which on sm_100 are a few too few.
MANY_WARPS, MANY_SPILLS = 12, 32

# head_dims that differ in width or number of slices, and a multiprocessor's shared memory on Hopper.
HEADS, SHARED = (64, 80, 128, 192, 256, 512), 228 << 10
# Sizes of small models and of few: some types at each of them.
OTHER_HEADS = (32, 320)
# Types that people choose for both K and V: compiled with exact cells and centered keys, too.
USUAL = {"f16", "q8_0", "q4_0", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq"}


def _attention() -> Iterator[Shipped]:
    """All pairs of types are compiled when they are asked for. Here is every type at every second kind of head, as K
    beside another type as V each time, with one or two sets of queries in turns."""
    kinds = list(KINDS.values())
    for i, kind in enumerate(kinds):
        for j, head in enumerate((*HEADS[i % 2 :: 2], OTHER_HEADS[i % 2])):
            other = kinds[(i + j) % len(kinds)]
            made = config(kind, other, head, 1 + (i // 2 + j) % 2, softcap=(i + j) % 3 == 0, limit=SHARED)
            yield Shipped(f"{made.file}.cu", made.file, made.defines(), MANY_SPILLS if made.warps >= MANY_WARPS else 0)
    # Heads of four slices with two sets: weights and values apart.
    named = {kind.name: kind for kind in kinds}
    for i, (k, v) in enumerate((("turbo2", "q4_0"), ("turbo4", "turbo3"), ("q5_1", "iq4_nl"))):
        made = config(named[k], named[v], 384 + 128 * (i % 2), 2, softcap=i == 0, limit=SHARED)
        assert made.apart
        yield Shipped(f"{made.file}.cu", made.file, made.defines())
    for kind in (k for k in kinds if k.bits <= 3 and not k.path):
        for head in (64, 128):
            made = config(kind, kind, head, 1, softcap=False, limit=SHARED, long=True)
            yield Shipped(f"{made.file}.cu", made.file, made.defines(), MANY_SPILLS if made.warps >= MANY_WARPS else 0)
    for i, kind in enumerate(k for k in kinds if k.path):
        for j, head in enumerate(HEADS[i::2]):
            how = {"one_table": True, "early": True, "long": j % 2 == 0}
            made = config(kind, kind, head, 1 + j % 2, softcap=False, limit=SHARED, **how)
            yield Shipped(f"{made.file}.cu", made.file, made.defines(), MANY_SPILLS if made.warps >= MANY_WARPS else 0)
    # Beside shared cells.
    for k, v in (("q8_0", "turbo3"), ("turbo3_tcq", "turbo3_tcq"), ("f16", "f16")):
        made = config(named[k], named[v], 128, 1, softcap=False, limit=SHARED, one_table=k == "turbo3_tcq")
        spills = MANY_SPILLS if made.warps >= MANY_WARPS else 0
        yield Shipped("attend.cu", "attend", replace(made, beside=True).defines(), spills)
    # Centered keys, with one and two sets of queries.
    for i, kind in enumerate(k for k in kinds if k.name in USUAL):
        made = config(kind, kinds[2 * i], HEADS[i % len(HEADS)], 1 + i % 2, softcap=False, limit=SHARED, centered=True)
        yield Shipped(f"{made.file}.cu", made.file, made.defines(), MANY_SPILLS if made.warps >= MANY_WARPS else 0)
    for head in (*HEADS, *OTHER_HEADS):
        width, slices = slices_of(head)
        for threads in MERGE_THREADS:
            yield Shipped("attend_merge.cu", "attend_merge", {"MERGE_DIMS": width * slices, "MERGE_THREADS": threads})


# Sums of 32 queries and 128 dims with scores of 64 cells are 192 of a thread's 255 registers: some addresses and
# counters of a turn go to memory, a dozen words beside 256 products.
PREFILL_SPILLS = 128


def _prefill() -> Iterator[Shipped]:
    """Every kind of head with the shared memory of Hopper, Ampere and smaller cards; and every type that is lifted."""
    limits = (SHARED, 164 << 10, 100 << 10)
    sizes = (*HEADS, *OTHER_HEADS)
    made = {prefill_config(head, softcap=head % 3 == 0, limit=limit) for head in sizes for limit in limits}
    for one in sorted(made, key=str):
        yield Shipped("prefill.cu", "prefill", one.defines(), PREFILL_SPILLS)
    for dims in sorted({one.dims for one in made}):
        yield Shipped("prefill_join.cu", "prefill_join", {"JOIN_DIMS": dims})
    for i, kind in enumerate(KINDS.values()):
        for values in (False, True) if kind is not F16 else ():
            yield Shipped(file_of(kind), "lift", lift_defines(kind, HEADS[(i + 3 * values) % len(HEADS)], values))
        # Centered ones are keys.
        if kind.name in USUAL:
            yield Shipped(file_of(kind), "lift", lift_defines(kind, HEADS[(i + 1) % len(HEADS)], False, True))


def _shared() -> Iterator[Shipped]:
    """Every type that is lifted so, on both sides, at every width; products of warpgroups for Hopper alone."""
    kinds, heads = (
        [k for k in KINDS.values() if k.name in SHARED_TYPES],
        [head for head in HEADS if slices_of(head)[1] == 1],
    )
    for wgmma, architectures in ((True, (ARCH,)), (False, ARCHITECTURES)):
        for i, kind in enumerate(kinds):
            head = heads[i % len(heads)]
            other = kinds[(i + 3) % len(kinds)]
            # One type on both sides, or two, in turns.
            k, v, one_table = (kind, kind, kind.path) if i % 2 == int(wgmma) else (kind, other, False)
            made = shared_config(k, v, head, softcap=i % 3 == 0, limit=SHARED, one_table=one_table, wgmma=wgmma)
            assert made is not None, "a Hopper multiprocessor has room for every type"
            yield Shipped("attend_shared.cu", "attend_shared", made.defines(), architectures=architectures)


def _cache() -> Iterator[Shipped]:
    others = ("kv_read", "kv_pack", "kv_unpack", "kv_encode", "kv_decode")
    for kind in KINDS.values():
        yield Shipped("kv.cu", "kv_append", {"KV_TYPE": kind.name.upper()}, others=others)
    for i, kind in enumerate(k for k in KINDS.values() if k.name in USUAL):
        # Values are exact in 8 bits, keys as halves.
        names: dict[str, Define] = {"KV_TYPE": kind.name.upper(), "KV_EXACT": "Q8_0" if i % 2 else "F16"}
        yield Shipped("kv_seal.cu", "kv_seal", names, others=("kv_mean", "kv_append_centered"))
    yield Shipped("kv_turn.cu", "turned")
    # Pairs are compiled when they are asked for. Here is every type once: what it does is the same as K and as V.
    kinds = list(KINDS.values())
    for k, v in zip_longest(kinds[::2], kinds[1::2], fillvalue=kinds[0]):
        yield _both(k, v)


def _both(k: Kind, v: Kind) -> Shipped:
    """Of heads of 128 dims; others are compiled when they are asked for."""
    sizes = {**size_defines("K", _sizes(k, 0)), **size_defines("V", _sizes(v, 1))}
    return Shipped("kv_both.cu", "kv_append_both", {"KV_K": k.name.upper(), "KV_V": v.name.upper(), **sizes})


def _sizes(kind: Kind, values: int) -> list[int]:
    """Of a head of 128 dims in tiles: what `forms.host_form` says, but for files."""
    group, turn = (128, 128) if kind.norms else (32, 0)
    spare = SEARCH + LANES * group if kind.path else 0
    return [128, 128, 128, group, turn, 1, 128, 1, values, kind.slice_bytes(128), 0, 0, 0, 128, spare]


def _steps() -> Iterator[Shipped]:
    """What lies between the products of a step of few rows."""
    for tiles in (0, 1):
        for add in (0, 1, 2):
            yield Shipped("residual.cu", "residual", _residual(add, 1, tiles))
        for gate in GATES.values():
            yield Shipped("glu_int8.cu", "glu_int8", {"GLU_GATE": gate, "QUANTIZE_TILES": tiles})
        for whole in (0, 1):
            for exact, parts in ((0, 0), (1, 0), (0, 1)) if tiles else ((0, 0),):
                defines: dict[str, Define] = {"OUTPUT_INT8": whole, "OUTPUT_EXACT": exact, "OUTPUT_PARTS": parts}
                defines |= {"QUANTIZE_TILES": tiles, **size_defines("V", _sizes(KINDS[Family.LLOYD_MAX, 3], 1))}
                yield Shipped("attention_outputs.cu", "attention_outputs", defines)
    for add in (1, 2):
        yield Shipped("residual.cu", "residual", _residual(add, 0, 0))


def _residual(add: int, following: int, tiles: int) -> dict[str, Define]:
    """Of rows of up to 4,096 values; others are compiled when they are asked for."""
    return {"RESIDUAL_ADD": add, "RESIDUAL_NEXT": following, "RESIDUAL_FOURS": 4, "QUANTIZE_TILES": tiles}
