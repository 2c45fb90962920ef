"""How the attention of rows that share cells is compiled (kernels/attend_shared.cu), and the shared memory it takes.

A block has a multiprocessor to itself: 64 registers of sums and 32 of queries for each of 256 threads that multiply
leave no room for another. Turns of cells between those who lift codes and those who multiply let both go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.fast.cuda.layout import TILE, Kind, slices_of
from polykv.fast.cuda.source import Define

# Queries of a block, of two teams of four warps that multiply.
QUERIES, TEAMS = 128, 2
# Turns that are lifted, and turns of codes under way; the best first.
CHOICES = ((4, 3), (4, 2), (4, 1), (3, 3), (3, 2), (2, 2))
# Types that kernels/halves.cuh turns into halves; rows of others read shared cells again for every eight queries.
TYPES = ("f16", "q8_0", "q4_0", "turbo4", "turbo3", "turbo2", "turbo3_tcq", "turbo2_tcq")
# Bytes of a level of each state of a path.
LEVEL = 4


@dataclass(frozen=True)
class SharedConfig:
    """k, v: how types lie in tiles; width, slices: of a head; stages, raw: turns that are lifted, and under way;
    softcap: whether scores are capped; one_table: whether K and V are paths with the same levels; wgmma: whether
    products are those of warpgroups, which compute capability 9.0 alone has."""

    k: Kind
    v: Kind
    width: int
    slices: int
    stages: int
    raw: int
    softcap: bool
    one_table: bool
    wgmma: bool

    @property
    def crews(self) -> int:
        """Groups of four warps that lift: a thread has fewer registers for it where registers can be handed over."""
        return 2 if self.wgmma else 1

    @property
    def works(self) -> bool:
        """Whether there are enough turns, and each crew has stages of its own. Products of warpgroups hold three: the
        values before, the scores that become weights, the next keys."""
        return self.stages % self.crews == 0 and self.stages >= (3 if self.wgmma else 2)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (TEAMS + self.crews)

    @property
    def turn(self) -> int:
        """Cells that are multiplied at a time."""
        return 2 * TILE // self.slices

    @property
    def dims(self) -> int:
        """Values of a head as they are stored."""
        return self.width * self.slices

    @property
    def shared(self) -> int:
        """Bytes of shared memory: levels, turns that are lifted, codes on their way and their barriers."""
        stage = 2 * 2 * self.dims * self.turn
        codes = sum(2 * self.crews * kind.slice_bytes(self.width) for kind in (self.k, self.v))
        barriers = 8 * 4 * self.crews if self.wgmma else 0
        paths = [kind for kind in (self.k, self.v) if kind.path][int(self.one_table) :]
        return sum(LEVEL << (6 + kind.bits) for kind in paths) + self.stages * stage + self.raw * (codes + barriers)

    def defines(self) -> dict[str, Define]:
        """What kernels/attend_shared.cu is specialised by."""
        return {
            "SHARED_K": self.k.name.upper(),
            "SHARED_V": self.v.name.upper(),
            "SHARED_WIDTH": self.width,
            "SHARED_SLICES": self.slices,
            "SHARED_STAGES": self.stages,
            "SHARED_RAW": self.raw,
            "SHARED_CREWS": self.crews,
            "SHARED_CAP": int(self.softcap),
            "SHARED_ONE_TABLE": int(self.one_table),
            "SHARED_WGMMA": int(self.wgmma),
        }


def shared_config(
    k: Kind, v: Kind, head_dim: int, *, softcap: bool, limit: int, one_table: bool, wgmma: bool
) -> SharedConfig | None:
    """The best that fits, if one does, and the types are of those that can be; limit: bytes of shared memory of a
    multiprocessor. Larger heads than 128 dims need more registers than there are."""
    width, slices = slices_of(head_dim)
    if slices > 1 or k.name not in TYPES or v.name not in TYPES:
        return None
    made = (SharedConfig(k, v, width, slices, *choice, softcap, one_table, wgmma) for choice in CHOICES)
    # A kilobyte of every block is the system's.
    return next((c for c in made if c.shared + 1024 <= limit and c.works), None)
