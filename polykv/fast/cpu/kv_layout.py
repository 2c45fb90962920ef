"""The resident layout: where the codes of a block lie, and the constants that kernels read.

A block of one kv head is one record of bytes, codes first, then the float16 scales, so that a kernel meets one array
per side whatever the codec. B tokens of D' stored values (D' = head_dim in whole groups of g, see `Codec.group`, and
of plain types in whole 16):

    F32, F16, BF16     values [D', B]           dims-major: all tokens of dim 0, then of dim 1
    Q8_0               int8   [D'/4, B, 4]      four dims of a token side by side
    Q4_0 Q4_1 IQ4_NL   bytes  [D'/32, 16, B]    low nibble = dim j of 32, high nibble = dim j + 16
    Q5_0 Q5_1          the same, then uint32 [D'/32, 1, B]    byte k, bit s = fifth bit of dim 4 s + k of 32
    Q6_0               the same, then uint32 [D'/32, 2, B]    byte k, bits 2 s = upper bits of dim 4 s + k of 16
    LLOYD_MAX          bits   [B, D'/g, b g]    token-major stream of b bits per value, first value lowest
    TRELLIS            bits   [B, D'/g, 6 + b g]    the same stream as in files, each group in whole bytes
    scales             [D'/g, B], and then for Q4_1 and Q5_1 the minima [D'/32, B]

Records of centered keys end with their mean in the space of the codes: blocks of q8_0 [D'/32], a float16 scale and 32
int8 each, in whole 16 bytes. They are blocks of one unit.

The K side is read with lanes along tokens, the V side with lanes along dims. Types that are usual for K are dims-major
and those usual for V token-major, which makes the usual pairs free of transposes; the others transpose while lifting.
Products of integer keys take four bytes to a lane, which is why Q8_0 has its dims in fours.
Plain streams because 8 codes of b bits are then b bytes: one load, one variable shift and one look-up yield 8 values.
Groups are whole octets of codes, and but for those of a head of its own size (24, 40, 56, 72) whole panels of 16 dims.
Such a group ends in half a panel. What is read for the other half are codes of the next token, or the scales, which
also absorb the read past the last code: values whose results nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from polykv.errors import UnsupportedError
from polykv.fast.cpu.simd_weights import IQ4
from polykv.fast.cpu.trellis_tables import PARTS, constants
from polykv.hadamard import core, core_order
from polykv.types import F32, UNIT, Codec, Family, KVArena

I64 = npt.NDArray[np.int64]

# `Family` as integers, which is what kernels compare.
F32_, F16_, BF16_ = int(Family.F32), int(Family.F16), int(Family.BF16)
Q8_0_, Q6_0_, Q5_1_, Q5_0_ = int(Family.Q8_0), int(Family.Q6_0), int(Family.Q5_1), int(Family.Q5_0)
Q4_1_, Q4_0_, IQ4_NL_ = int(Family.Q4_1), int(Family.Q4_0), int(Family.IQ4_NL)
LLOYD_, TRELLIS_ = int(Family.LLOYD_MAX), int(Family.TRELLIS)
# Types whose codes are integers with a scale to 32 dims.
SCALAR = (Q8_0_, Q6_0_, Q5_1_, Q5_0_, Q4_1_, Q4_0_, IQ4_NL_)
RANGED = (Family.Q4_1, Family.Q5_1)
LLOYD_BITS, TRELLIS_BITS = (2, 3, 4, 8), (2, 3)
PLAIN = (Family.F32, Family.F16, Family.BF16)

# Tokens that kernels take at a time; blocks are whole pieces.
PIECE = 8
# Codes of a token-major type that kernels take at a time.
OCTET = 8
# Entries of `geom`: the first is the family.
# GROUP: values that are encoded together; for plain types, which have no groups, a panel's width, PANEL.
# HIGH_AT, SCALE_AT, MIN_AT: offsets in a record. GROUP_BYTES: of a group in files; codes begin at CODES_AT.
# TURN: values that are rotated together; CORE: order of the Paley factor of their Hadamard matrix. 0 = not rotated.
# BITS: of a code. PREFIX: bits of a trellis state that are older than its symbol.
# STREAM: bytes of a group of a token-major type, ROW: of a token. WEIGHTED: whether scales go to the softmax weights.
# MEAN_AT: offset of the mean in a record, 0 = there is none. MEAN_BLOCK: bytes of 32 values of it.
FAMILY, DIM, STORED, GROUP, BLOCK, HIGH_AT, SCALE_AT, MIN_AT, RECORD, GROUP_BYTES, CODES_AT, CORE = range(12)
BITS, PREFIX, STREAM, ROW, WEIGHTED, TURN, MEAN_AT, GEOM = range(12, 20)
MEAN_BLOCK = 34
# Dims that lie side by side when values are read.
PANEL = 16
# The longest rotation group that is not made of blocks of 128, and the largest core of a group's matrix
# (polykv/hadamard.py). Numbers of this file, because kernels contain them and are kept under a hash of their sources.
LONGEST, WIDEST = 576, 36
# Offsets in `table`: levels (512 at most; fewer than 16 are repeated, so that an index of 3 or 4 bits needs no mask),
# thresholds, rotation signs, Paley's matrix twice: P transposed, by whose rows the product P y is summed, and P, for
# P^T y; the factor on norms; and what the search of a trellis reads (`trellis_tables`).
LEVELS, THRESHOLDS, SIGNS1, SIGNS2 = 0, 512, 768, 768 + LONGEST
FORWARD = SIGNS2 + LONGEST
BACKWARD = FORWARD + WIDEST**2
ALPHA = BACKWARD + WIDEST**2
TRELLIS = ALPHA + 8
# Of tables of more than 16 levels, which attention reads rounded: the rounded levels, what 1 of 32639 is worth, and the
# levels as int16, in planes of 512 low and 512 high bytes (`lift_words`), and the high bytes that go with low ones that
# have a sign (`lift_planes`).
ROUNDED = TRELLIS + PARTS * 512
WORTH, PLANES = ROUNDED + 512, ROUNDED + 513
# Of three-bit levels, which attention reads as integers (`_fitted`), what 1 is worth is at WORTH, too. Then, of these
# and of scalar types, the inverse of what the weights that they meet may sum up to (`attend_weights`); and levels as
# int16, four times the 8, and as int32, in the lower and in the upper halves.
SHARE, LOOKUP = PLANES + 384, PLANES + 385
LOOKUP_LOW, TABLE = LOOKUP + 16, LOOKUP + 32
# The largest three-bit level as an integer.
TOP = 4095


@dataclass(frozen=True, eq=False)
class CpuArena(KVArena):
    """A KVArena with its layout in the form that kernels read; its one field is `data`, uint8 [N, n_kv, RECORD]."""

    geom: I64
    table: F32


def codec_limit(codec: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why there are no kernels for a codec at this head_dim and block size."""
    if head_dim < PANEL or head_dim % 2:
        return f"kernels need an even head_dim of at least {PANEL}"
    if block_size < PIECE or block_size % PIECE:
        return f"kernels need a block size that is a multiple of {PIECE}"
    if codec.centered and block_size != UNIT:
        return f"centered keys (+c) are kept in blocks of {UNIT}"
    if codec.unit_norm and codec.group(head_dim) % OCTET:
        return f"kernels take rotated codes {OCTET} at a time, and a head of {head_dim} is one group of them"
    return width_limit(codec)


def width_limit(codec: Codec) -> str | None:
    """None, or why there are no kernels for codes of this width, whatever the vectors."""
    widths = {Family.LLOYD_MAX: LLOYD_BITS, Family.TRELLIS: TRELLIS_BITS}.get(codec.family)
    if widths is not None and codec.bits not in widths:
        return f"there are kernels for rotated codes of {', '.join(map(str, widths))} bits, not of {codec.bits}"
    return None


@lru_cache(maxsize=64)
def layout(codec: Codec, head_dim: int, block_size: int) -> tuple[I64, F32]:
    """`geom` int64 [GEOM] and `table` float32 [TABLE] of a codec at one head_dim and block size.

    Raises UnsupportedError for what `codec_limit` names; `polykv.load` asks before it allocates anything.
    """
    reason = codec_limit(codec, head_dim, block_size)
    if reason is not None:
        raise UnsupportedError(f"the backend cpu cannot store head_dim {head_dim} in blocks of {block_size}: {reason}")
    group = codec.group(head_dim)
    return _layout(codec, head_dim, block_size, group, codec.resident_dim(head_dim), codec.group_bytes(group), 0)


@lru_cache(maxsize=64)
def exchange_layout(codec: Codec, head_dim: int) -> tuple[I64, F32]:
    """The same for vectors in the groups of the exchange layout, which are stored nowhere. Raises UnsupportedError."""
    reason = width_limit(codec)
    if reason is not None:
        raise UnsupportedError(f"the backend cpu cannot make {codec.name}: {reason}")
    # Bytes that hold nothing: behind the norm, but behind the codes of a trellis.
    reserved = 0 if codec.family == Family.TRELLIS else codec.block_bytes - codec.group_bytes(codec.block)
    return _layout(codec, head_dim, PIECE, codec.block, codec.padded(head_dim), codec.block_bytes, reserved)


def _layout(
    codec: Codec, head_dim: int, block_size: int, group: int, stored: int, group_bytes: int, reserved: int
) -> tuple[I64, F32]:
    plain, ranged, prefix = codec.family in PLAIN, codec.family in RANGED, _prefix(codec)
    if plain:
        group, group_bytes, stored = PANEL, PANEL * group_bytes, -(-stored // PANEL) * PANEL
    groups, stream = stored // group, -(-(prefix + codec.bits * group) // 8)
    high_at = block_size * groups * (group // 2 if _nibbles(codec) else stream)
    scale_at = block_size * groups * stream
    min_at = scale_at + (0 if plain else 2 * groups * block_size)
    end = min_at + (2 * groups * block_size if ranged else 0)
    # Nothing is read past a record: loads cover pieces of 8 tokens, and the last code has scales behind it.
    record = -(-end // 16) * 16
    mean_at = record if codec.centered else 0
    record += codec.mean_bytes(head_dim)
    turn = (group if codec.unit_norm else codec.turn(head_dim)) if codec.rotated else 0
    geom = np.zeros(GEOM, np.int64)
    geom[[FAMILY, DIM, STORED, GROUP, BLOCK]] = codec.family, head_dim, stored, group, block_size
    geom[[HIGH_AT, SCALE_AT, MIN_AT, RECORD]] = high_at, scale_at, min_at, record
    geom[[GROUP_BYTES, CODES_AT]] = group_bytes, (0 if plain else 4 if ranged else 2) + reserved
    geom[[TURN, CORE, MEAN_AT]] = turn, core_order(turn), mean_at
    geom[[BITS, PREFIX, STREAM, ROW]] = codec.bits, prefix, stream, stream * groups
    geom[WEIGHTED] = not plain and not ranged
    return geom, _table(codec, group, turn)


def _prefix(codec: Codec) -> int:
    return codec.prefix_bits if codec.family == Family.TRELLIS else 0


def _nibbles(codec: Codec) -> bool:
    """Whether codes are stored as nibbles and upper bits."""
    return codec.block == 32 and codec.bits < 8


def _table(codec: Codec, group: int, turn: int) -> F32:
    table = np.zeros(TABLE, np.float32)
    if codec.family == Family.IQ4_NL:
        table[:16] = IQ4
    if codec.unit_norm:
        levels = np.asarray(codec.centroids, np.float32) * np.sqrt(np.float32(codec.block / group))
        levels = np.tile(levels, max(1, 16 // len(levels)))
        table[LEVELS : LEVELS + len(levels)] = levels
        table[THRESHOLDS : THRESHOLDS + len(codec.thresholds)] = codec.thresholds
        table[ALPHA] = codec.alpha
        if len(codec.centroids) > 16:
            whole, table[WORTH] = _rounded(levels)
            table[ROUNDED : ROUNDED + len(levels)] = whole * table[WORTH]
            planes, words = table[PLANES : PLANES + 384].view(np.uint8).reshape(3, 512), whole.astype(np.int32)
            planes[:, : len(levels)] = [words & 255, words >> 8 & 255, words + 128 >> 8 & 255]
    if codec.family in SCALAR:
        table[WORTH], table[SHARE] = 1, 1 / (2**31 // 128 - 64)
    if turn:
        m = core_order(turn)
        table[SIGNS1 : SIGNS1 + turn], table[SIGNS2 : SIGNS2 + turn] = codec.signs(turn)
        table[FORWARD : FORWARD + m * m] = core(m).T.reshape(-1)
        table[BACKWARD : BACKWARD + m * m] = core(m).reshape(-1)
    if codec.family == Family.LLOYD_MAX and codec.bits == 3:
        fitted, table[WORTH] = _fitted(table[LEVELS : LEVELS + 8].astype(np.float64))
        # Products stay below 2^31, with room for what rounding adds to the sum of 32 weights.
        table[SHARE] = 1 / (2**31 // int(np.abs(fitted).max()) - 64)
        table[LOOKUP : LOOKUP + 16].view(np.int16)[:] = np.tile(fitted, 4)
        table[LOOKUP_LOW : LOOKUP_LOW + 16].view(np.int32)[:] = np.concatenate([fitted & 0xFFFF, fitted << 16])
    if codec.family == Family.TRELLIS:
        searched = constants(codec)
        table[TRELLIS : TRELLIS + len(searched)] = searched
    return table


def _rounded(levels: F32) -> tuple[F32, np.float32]:
    """Levels as integers, the largest 32639 (two bytes with a sign each), and what 1 of it is worth."""
    worth = np.float32(np.abs(levels).max() / 32639)
    return np.rint(levels / worth).astype(np.float32), worth


def _fitted(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int32], float]:
    """Integers up to TOP, and their worth, that come nearest to some values in all.

    Most multiples of the values round badly; a good one leaves an error of 1e-5.
    """
    tops = np.arange(TOP // 4, TOP, 0.05)
    whole = np.rint(values * (tops / np.abs(values).max())[:, None])
    worth = (values * whole).sum(axis=1) / np.square(whole).sum(axis=1)
    best = np.square(values - worth[:, None] * whole).sum(axis=1).argmin()
    return whole[best].astype(np.int32), float(worth[best])
