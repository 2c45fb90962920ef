"""What a type of K or V is: constants that say how a vector is stored, and how many bytes that takes.

Everybody imports these names from `polykv.types`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from polykv.hadamard import core_order

F32 = npt.NDArray[np.float32]


class Family(IntEnum):
    """How a codec stores a vector; the one thing kernels branch on. `Codec.bits` tells the types of a family apart."""

    F32 = 0
    F16 = 1
    Q8_0 = 2
    Q4_0 = 3
    LLOYD_MAX = 4
    BF16 = 5
    Q6_0 = 6
    Q5_1 = 7
    Q5_0 = 8
    Q4_1 = 9
    IQ4_NL = 10
    TRELLIS = 11


# Values that are rotated together in heads that are made of several such turns.
TURN = 128
# Values of the longest path of 2 bits. A path has as many free bits at its start whatever its length, so long ones have
# less of them per value: more than 2 % more error than at 128 from about 280 values on (docs/FORMATS.md).
LONGEST_PATH = 224


@dataclass(frozen=True, eq=False)
class Signs:
    """The two +-1 vectors of the rotation y = s2 * H(x * s1) / sqrt(g), for every size of group.

    narrow: of length 128; a group of g <= 128 values uses the first g. wide: by size, for longer groups.
    """

    narrow: tuple[F32, F32]
    wide: dict[int, tuple[F32, F32]]

    def of(self, group: int) -> tuple[F32, F32]:
        """s1 and s2 of a group, float32 [group] each."""
        if group > len(self.narrow[0]):
            return self.wide[group]
        return self.narrow[0][:group], self.narrow[1][:group]


@dataclass(frozen=True)
class Codec:
    """One way to store K or V vectors. Built by `polykv.cache.codecs`; constants only, no arrays of data.

    bits: code bits per value (without scales). block: values that share fp16 scales in the exchange layout (32 scalar,
    128 rotated, 1 for plain types). block_bytes: bytes of one such block there.
    Rotated codecs: `centroids` (LLOYD_MAX: 2^bits, ascending; TRELLIS: one per state) and `thresholds` (LLOYD_MAX,
    ascending) are in units of a unit-norm 128-vector; for a group of g values multiply both by sqrt(128/g). alpha:
    factor on the norm that encoders store; decoders know nothing of it.
    A scalar codec with a `rotation` codes rotated vectors (`q4_0+r`): its scales still belong to `block` values each.
    centered (`turbo4+c`, keys only): what is coded is a vector less the mean of its unit of UNIT positions; means are
    kept as q8_0, in the space of the codes, one per block and head (docs/CENTERED.md).
    Source: shared rotation and tables of the TurboQuant forks (docs/FORMATS.md, data/README.md).
    """

    name: str
    family: Family
    bits: int
    block: int
    block_bytes: int
    centroids: tuple[float, ...] = field(default=(), repr=False)
    thresholds: tuple[float, ...] = field(default=(), repr=False)
    rotation: Signs | None = field(default=None, repr=False)
    table_id: str = ""
    alpha: float = 1.0
    centered: bool = False

    @property
    def rotated(self) -> bool:
        return self.rotation is not None

    @property
    def unit_norm(self) -> bool:
        """Codes of unit vectors: a group is what was rotated together and has one norm."""
        return self.family in (Family.LLOYD_MAX, Family.TRELLIS)

    def signs(self, group: int) -> tuple[F32, F32]:
        """The vectors s1, s2 of a rotated codec for groups of this size, float32 [group]."""
        if self.rotation is None:
            raise ValueError(f"{self.name} is not rotated")
        return self.rotation.of(group)

    @property
    def prefix_bits(self) -> int:
        """TRELLIS: bits of a state that are older than its own symbol; a stream begins with so many."""
        return len(self.centroids).bit_length() - 1 - self.bits

    # -- exchange layout -----------------------------------------------------------------------------------------
    def padded(self, head_dim: int) -> int:
        """Values that the exchange layout stores for one head vector (a multiple of `block`)."""
        if self.rotated and not self.unit_norm:
            return self.resident_dim(head_dim)
        return -(-head_dim // self.block) * self.block

    def exchange_bytes(self, head_dim: int) -> int:
        """Bytes of one head vector in the exchange layout."""
        return self.padded(head_dim) // self.block * self.block_bytes

    # -- memory and files ----------------------------------------------------------------------------------------
    def group(self, head_dim: int) -> int:
        """Values that share scales in memory: `block`, but for codes of unit vectors head_dim itself unless it is made
        of whole blocks, if there is a Hadamard matrix of that order. So no bits go into padding. Where paths of that
        length would be too inexact it is an equal part of head_dim."""
        if not self.unit_norm or head_dim % self.block == 0 or not core_order(head_dim):
            return self.block
        parts = -(-head_dim // LONGEST_PATH) if self.family == Family.TRELLIS and self.bits == 2 else 1
        return head_dim // parts if head_dim % parts == 0 and core_order(head_dim // parts) else head_dim

    def turn(self, head_dim: int) -> int:
        """Values that a rotated codec rotates together in memory: a group, or, where scales belong to fewer values,
        head_dim unless it is made of whole 128, if there is a Hadamard matrix of that order."""
        if self.unit_norm:
            return self.group(head_dim)
        return head_dim if head_dim % TURN and core_order(head_dim) else TURN

    def stored_dim(self, head_dim: int) -> int:
        """Length of a head vector in the space of its codes: head_dim, in whole turns if rotated."""
        if not self.rotated:
            return head_dim
        return -(-head_dim // self.turn(head_dim)) * self.turn(head_dim)

    def resident_dim(self, head_dim: int) -> int:
        """Values stored for one head vector in memory (>= head_dim, a multiple of `group`)."""
        g = self.group(head_dim)
        return -(-self.stored_dim(head_dim) // g) * g

    def group_bytes(self, group: int) -> int:
        """Bytes of one group of values in the packed layout: fp16 scales, then fields of bits, each in whole bytes."""
        if self.family == Family.TRELLIS:
            return 2 + -(-(self.prefix_bits + self.bits * group) // 8)
        if self.family == Family.LLOYD_MAX:
            return 2 + sum(-(-width * group // 8) for width in self.fields)
        return self.block_bytes

    @property
    def fields(self) -> tuple[int, ...]:
        """LLOYD_MAX: widths of the bit fields of a code, lowest bits first."""
        return (2, 1) if self.bits == 3 else (self.bits,)

    def packed_bytes(self, head_dim: int) -> int:
        """Bytes of one head vector in the packed layout: what memory and pool files hold."""
        g = self.group(head_dim)
        return self.resident_dim(head_dim) // g * self.group_bytes(g)

    def mean_bytes(self, head_dim: int) -> int:
        """Bytes of the mean of one block and head, if centered: blocks of q8_0, filled up to whole 16 bytes."""
        return -(-34 * -(-self.stored_dim(head_dim) // 32) // 16) * 16 if self.centered else 0

    def packed_rows(self, head_dim: int, block_size: int) -> int:
        """Rows of packed_bytes of one block and head in the packed layout: its vectors, then its mean, if centered,
        filled up with zeros."""
        return block_size + -(-self.mean_bytes(head_dim) // self.packed_bytes(head_dim))
