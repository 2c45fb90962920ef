"""How `attend` is compiled for a pair of types, and the shared memory that it takes.

What decides the speed of a type is which unit is busy (H200, 262,144 cells, 32 heads over 8 K/V heads of 128 dims): f16
and q8_0 wait for memory and want copies under way rather than warps; types of two to four bits keep the integer units
busy with unpacking, and want as many warps as registers allow, and two tiles at a time, which share the tests between
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.fast.cuda.layout import Kind, slices_of
from polykv.fast.cuda.source import Define

WARPS, QUERIES = 4, 4


@dataclass(frozen=True)
class Config:
    """k, v: how the types lie in tiles; width, slices: of a head; sets: queries / 4; ctas: blocks that should fit a
    multiprocessor; stages: turns under way for a warp; tiles: of a turn; softcap: whether scores are capped."""

    k: Kind
    v: Kind
    width: int
    slices: int
    sets: int
    ctas: int
    stages: int
    tiles: int
    softcap: bool

    @property
    def teams(self) -> int:
        """Warps of a block that take different tiles."""
        return WARPS // self.slices

    @property
    def turn(self) -> int:
        """Cells that a warp takes at a time."""
        return 32 * self.tiles

    @property
    def shared(self) -> int:
        """Bytes of shared memory: turns under way and scores on their way between slices; the results at the end."""
        stage = self.tiles * (self.k.slice_bytes(self.width) + self.v.slice_bytes(self.width))
        exchange = 2 * WARPS * self.tiles * self.sets * 512 if self.slices > 1 else 0
        queries = QUERIES * self.sets
        results = self.teams * queries * self.width * self.slices * 4 + WARPS * queries * 8
        return max(WARPS * self.stages * stage + exchange, results)

    def defines(self) -> dict[str, Define]:
        """What kernels/attend.cu is specialised by."""
        found: dict[str, Define] = {
            "ATT_K": self.k.name.upper(),
            "ATT_V": self.v.name.upper(),
            "ATT_WIDTH": self.width,
            "ATT_SLICES": self.slices,
            "ATT_SETS": self.sets,
            "ATT_CTAS": self.ctas,
            "ATT_STAGES": self.stages,
            "ATT_TILES": self.tiles,
        }
        return found | ({"ATT_SOFTCAP": 1} if self.softcap else {})


def config(k: Kind, v: Kind, head_dim: int, sets: int, *, softcap: bool, limit: int) -> Config:
    """The best known; limit: bytes of shared memory of a multiprocessor."""
    width, slices = slices_of(head_dim)
    wide, tiles = max(k.bits, v.bits), 1 if max(k.bits, v.bits) >= 8 else 2
    if wide == 16:
        ctas, stages = 1, 2
    elif sets == 2:
        ctas, stages = 2, 2
    elif wide == 8:
        ctas, stages = 2 if min(k.bits, v.bits) == 8 else 3, 3
    else:
        ctas, stages = 3 if wide == 4 else 4, 2
    made = Config(k, v, width, slices, sets, ctas, stages, tiles, softcap)
    # A kilobyte of every block is the system's.
    while ctas > 1 and ctas * (made.shared + 1024) > limit:
        ctas -= 1
        made = Config(k, v, width, slices, sets, ctas, stages, tiles, softcap)
    while stages > 2 and made.shared + 1024 > limit:
        stages -= 1
        made = Config(k, v, width, slices, sets, ctas, stages, tiles, softcap)
    return made
