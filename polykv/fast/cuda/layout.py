"""Tiles of codes as the attention kernels read them (kernels/attend_types.cuh): packing on the host, and which codecs
lie so.

A tile is 32 cells of one K/V head. Its slices of up to 128 dims lie one after the other; in a slice, what a lane of a
warp needs lies lane after lane in chunks of 16 bytes, and behind all codes norms or scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polykv.errors import UnsupportedError
from polykv.fast.cuda import layout_trellis as trellis
from polykv.hadamard import core_order
from polykv.types import U8, UNIT, Codec, Family

TILE, LANES = 32, 32
# Values that are rotated together in heads without a rotation of their own (`Codec.turn`).
TURN = 128
Codes = npt.NDArray[np.unsignedinteger]
# The cells of V whose codes lane t (of four) has, in their order; and those whose scores lane g (of eight) has.
CELLS = np.array([[8 * j + 2 * t + i for j in range(4) for i in range(2)] for t in range(4)])
SCORED = np.array([[8 * j + g for j in range(4)] for g in range(8)])


@dataclass(frozen=True)
class Kind:
    """How one type lies in tiles: bits of a code; whether codes are indices of levels; whether there is a scale for
    every 32 dims, and (minima) a minimum; else codes of levels have one norm per cell and slice. zero: the code that
    stands for 0. bfloat: codes are bfloat16. path: codes are the steps of a path (layout_trellis.py)."""

    name: str
    bits: int
    levels: bool
    scales: bool
    path: bool = False
    zero: int = 0
    minima: bool = False
    bfloat: bool = False

    @property
    def halves_bytes(self) -> int:
        """Bytes of a table of levels as halves, for types with more levels than registers hold bytes."""
        return 2 << self.bits if self.levels and self.bits == 8 else 0

    @property
    def norms(self) -> bool:
        """Whether there is one norm per cell and slice."""
        return self.levels and not self.scales

    def slice_bytes(self, width: int) -> int:
        """Bytes of one slice."""
        scales = 64 if self.norms else width // 32 * 64 * (self.scales + self.minima)
        return width * TILE * self.bits // 8 + scales + (TILE if self.path else 0)

    def tile_bytes(self, width: int, slices: int) -> int:
        """Bytes of a tile of slices * width dims."""
        return slices * self.slice_bytes(width)


def slices_of(head_dim: int) -> tuple[int, int]:
    """Width and number of slices of a head: up to 128 dims each, a multiple of 32; 1, 2 or 4 of them.

    Heads for which there is no rotation have room for whole turns, since a rotated type fills them up so.
    """
    dims = head_dim if core_order(head_dim) else -(-head_dim // TURN) * TURN
    slices = 1 if dims <= 128 else 2 if dims <= 256 else 4
    return -(-dims // (32 * slices)) * 32, slices


def mean_bytes(width: int) -> int:
    """Bytes of a slice of the mean of centered keys (kernels/kv_mean.cuh): a code a dim, then scales."""
    return width + 16


def groups_of_k(codes: Codes) -> Codes:
    """codes [n, 32 cells, W] -> [n, W / 8 groups, 32 lanes, 8]."""
    n, _, w = codes.shape
    x = codes.reshape(n, 4, 8, w // 32, 4, 8)  # n, j, g, s, t, i
    return x.transpose(0, 3, 1, 2, 4, 5).reshape(n, w // 8, LANES, 8)


def groups_of_v(codes: Codes) -> Codes:
    """codes [n, 32 cells, W] -> [n, W / 8 groups, 32 lanes, 8]."""
    n, _, w = codes.shape
    x = codes[:, CELLS]  # n, t, 8, W
    return x.reshape(n, 4, 8, w // 8, 8).transpose(0, 3, 4, 1, 2).reshape(n, w // 8, LANES, 8)


def words_of(bits: int, split: bool, groups: Codes) -> list[npt.NDArray[np.uint32]]:
    """Words [n, lanes, words] of the regions of a slice. split: codes of four bits in nibbles of levels' order; else
    nibbles of q4_0, and in the same order the upper bits of codes of five and six bits."""
    n, count = groups.shape[:2]
    x = groups.astype(np.uint32)
    nibble = 4 * np.arange(8, dtype=np.uint32)
    if bits == 16:
        return [_lanes(np.ascontiguousarray(groups.astype("<u2")).view("<u4"))]
    if bits == 8:
        return [_lanes(np.ascontiguousarray(groups.astype(np.uint8)).view("<u4"))]
    if bits >= 4:
        order = nibble if split else 4 * np.array([0, 2, 4, 6, 1, 3, 5, 7], np.uint32)
        regions = [_lanes(((x & 15) << order).sum(-1, dtype=np.uint32)[..., None])]
        if bits > 4:
            per = 4 // (bits - 4)
            upper = (x >> 4).reshape(n, count // per, per, LANES, 8)
            places = (bits - 4) * np.arange(per, dtype=np.uint32)[:, None, None]
            regions.append(_lanes((upper << order << places).sum((2, 4), dtype=np.uint32)[..., None]))
        return regions
    pairs = x.reshape(n, count // 2, 2, LANES, 8)
    two = ((pairs & 3) << nibble << np.array([0, 2], np.uint32)[:, None, None]).sum((2, 4), dtype=np.uint32)
    regions = [_lanes(two[..., None])]
    if bits == 3:
        fours = x.reshape(n, count // 4, 4, LANES, 8)
        one = ((fours >> 2) << nibble << np.arange(4, dtype=np.uint32)[:, None, None]).sum((2, 4), dtype=np.uint32)
        regions.append(_lanes(one[..., None]))
    return regions


def _lanes(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """[n, groups, lanes, words of a group] -> [n, lanes, words]."""
    n, groups, lanes, each = words.shape
    return words.transpose(0, 2, 1, 3).reshape(n, lanes, groups * each)


def chunks(words: npt.NDArray[np.uint32]) -> U8:
    """Words [n, lanes, N] in chunks of four, then two, then one, each lane after lane: bytes [n, 128 N]."""
    n, _, count = words.shape
    parts, at = [], 0
    for size in (*[4] * (count // 4), *[2] * (count % 4 // 2), *[1] * (count % 2)):
        parts.append(words[:, :, at : at + size].reshape(n, -1))
        at += size
    return np.ascontiguousarray(np.concatenate(parts, axis=1)).view(np.uint8)


def by_lane(values: npt.NDArray[np.float16]) -> U8:
    """Halves [n, 32 cells] in the order of the lanes' scores: bytes [n, 64]."""
    return np.ascontiguousarray(values[:, SCORED].reshape(len(values), -1)).view(np.uint8)


def pack(kind: Kind, codes: Codes, scales: npt.NDArray[np.float16] | None, width: int, *, values: bool) -> U8:
    """Tiles [n, bytes] of codes [n, 32, slices * width], states for a path; scales: norms [n, 32, slices], or
    [n, 32, D / 32], or twice as many, scales and then minima."""
    n, _, dims = codes.shape
    parts: list[U8] = []
    for first in range(0, dims, width):
        own = codes[:, :, first : first + width]
        if kind.path:
            parts.append(chunks(trellis.words(own, kind.bits, values=values)))
        else:
            groups = (groups_of_v if values else groups_of_k)(own)
            parts += [chunks(w) for w in words_of(kind.bits, kind.levels, groups)]
        if scales is not None:
            per = width if kind.norms else 32
            # Minima, if there are any, lie behind all scales.
            for start in range(0, scales.shape[2], dims // per):
                own_scales = range(start + first // per, start + (first + width) // per)
                parts += [by_lane(scales[:, :, b]) for b in own_scales]
        if kind.path:
            parts.append(trellis.prefixes(own, values=values))
    return np.concatenate([p.reshape(n, -1) for p in parts], axis=1)


KINDS = {
    (Family.F16, 16): Kind("f16", 16, levels=False, scales=False),
    (Family.Q8_0, 8): Kind("q8_0", 8, levels=False, scales=True),
    (Family.Q4_0, 4): Kind("q4_0", 4, levels=False, scales=True, zero=8),
    (Family.Q6_0, 6): Kind("q6_0", 6, levels=False, scales=True, zero=32),
    (Family.Q5_1, 5): Kind("q5_1", 5, levels=False, scales=True, minima=True),
    (Family.Q5_0, 5): Kind("q5_0", 5, levels=False, scales=True, zero=16),
    (Family.Q4_1, 4): Kind("q4_1", 4, levels=False, scales=True, minima=True),
    (Family.IQ4_NL, 4): Kind("iq4_nl", 4, levels=True, scales=True),
    (Family.BF16, 16): Kind("bf16", 16, levels=False, scales=False, bfloat=True),
    (Family.LLOYD_MAX, 8): Kind("turbo8", 8, levels=True, scales=False),
    (Family.LLOYD_MAX, 4): Kind("turbo4", 4, levels=True, scales=False),
    (Family.LLOYD_MAX, 3): Kind("turbo3", 3, levels=True, scales=False),
    (Family.LLOYD_MAX, 2): Kind("turbo2", 2, levels=True, scales=False),
    (Family.TRELLIS, 3): Kind("turbo3_tcq", 3, levels=True, scales=False, path=True),
    (Family.TRELLIS, 2): Kind("turbo2_tcq", 2, levels=True, scales=False, path=True),
}
# Widths and numbers of slices that attention is compiled for: head_dims up to 512.
SHAPES = ((32, 1), (64, 1), (96, 1), (128, 1), (96, 2), (128, 2), (96, 4), (128, 4))
# Cells of the smallest block: attention takes two tiles at a time.
BLOCK = 2 * TILE


def codec_limit(codec: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why there are no kernels for a codec at this head_dim and block size."""
    if (codec.family, codec.bits) not in KINDS:
        return _unread(codec)
    (width, slices), resident = slices_of(head_dim), codec.resident_dim(head_dim)
    if (width, slices) not in SHAPES:
        return "the cuda backend has no attention over heads of more than 512 dims"
    if resident > width * slices:
        return f"head_dim {head_dim} takes {resident} values as {codec.name}, where a tile has {width * slices}"
    if codec.unit_norm and codec.group(head_dim) not in (width, resident):
        return f"groups of {codec.group(head_dim)} values of {codec.name} do not fit into slices of {width}"
    if codec.centered and block_size != UNIT:
        return f"{codec.name} has a mean for every {UNIT} cells, so that many are a block"
    if block_size < BLOCK or block_size & (block_size - 1):
        return f"the cuda backend needs a block size that is a power of two from {BLOCK} on"
    return None


def kind_of(codec: Codec) -> Kind:
    """How a type lies in tiles. Raises UnsupportedError for one that no kernel reads."""
    found = KINDS.get((codec.family, codec.bits))
    if found is None:
        raise UnsupportedError(_unread(codec))
    return found


def _unread(codec: Codec) -> str:
    # Centered or not, it is the type itself.
    name = codec.name.removesuffix("+c")
    return f"the cuda backend has no attention over {name}: it multiplies floats of 16 bits (f16, bf16)"
