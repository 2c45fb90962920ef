"""How `attend` is compiled for a pair of types, and the shared memory that it takes.

What decides the speed of a type is which unit is busy (H200, 262,144 cells, 32 heads over 8 K/V heads of 128 dims): f16
and q8_0 wait for memory and want copies under way rather than warps; types of two to four bits keep the integer units
busy with unpacking, and want as many warps as registers allow, and two tiles at a time, which share the tests between
them. Trellis types want a table in every bank, which leaves room for one block on a multiprocessor, of as many warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polykv.fast.cuda.layout import Kind, mean_bytes, slices_of
from polykv.fast.cuda.layout_trellis import ENTRIES
from polykv.fast.cuda.source import Define

WARPS, QUERIES = 4, 4
# Turns whose weights wait for warps that sum values (kernels/attend_wide.cu).
PLACES = 4


@dataclass(frozen=True)
class Config:
    """k, v: how types lie in tiles; width, slices: of a head; sets: queries / 4; ctas: blocks that should fit a
    multiprocessor; stages: turns under way for a warp; tiles: of a turn; softcap: whether scores are capped; warps: of
    a block; copies: of each table of a trellis type; one_table: whether K and V share theirs; centered: whether keys
    are less a mean; early: whether attention begins while new keys and values are being written; beside: whether it
    runs beside that of cells that many rows share (kernels/attend_shared.cu); apart: whether weights are found by other
    warps than those that sum values (kernels/attend_wide.cu)."""

    k: Kind
    v: Kind
    width: int
    slices: int
    sets: int
    ctas: int
    stages: int
    tiles: int
    softcap: bool
    warps: int = WARPS
    copies: int = 0
    one_table: bool = False
    centered: bool = False
    early: bool = False
    beside: bool = False
    apart: bool = False

    @property
    def file(self) -> str:
        """The name of the kernel."""
        return "attend_wide" if self.apart else "attend"

    @property
    def teams(self) -> int:
        """Warps of a block that take different tiles."""
        return self.warps // self.slices // (1 + self.apart)

    @property
    def turn(self) -> int:
        """Cells that a warp takes at a time."""
        return 32 * self.tiles

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tables, turns under way and scores on their way between slices; the results at the
        end."""
        stage = self.tiles * (self.k.slice_bytes(self.width) + self.v.slice_bytes(self.width))
        stage += mean_bytes(self.width) if self.centered else 0
        queries, units = QUERIES * self.sets, self.tiles * self.sets * 512
        if self.apart:
            sums, barriers = self.slices * self.sets * self.width * 16, 8 * (2 * PLACES + 1)
            return self.slices * (self.stages * stage + units) + PLACES * (units + 4 * queries) + sums + barriers
        exchange = 2 * self.warps * units if self.slices > 1 else 0
        results = self.teams * queries * (self.width * self.slices + 8) * 4 + self.warps * queries * 8
        tables = (self.k.path + self.v.path - self.one_table) * ENTRIES * 4 * self.copies
        tables += self.k.halves_bytes + self.v.halves_bytes
        return max(tables + self.warps * self.stages * stage + exchange + self._prepared, results)

    @property
    def _prepared(self) -> int:
        """Bytes where queries are prepared: of each 32 dims of a query two numbers, and words of tensor cores."""
        words = 4 if self.k.bits == 16 or self.k.halves_bytes else 2
        pieces = self.slices * self.sets * self.width // 32
        return 8 * QUERIES * pieces + (pieces * words * 128 if self.teams > 1 else 0)

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
            "ATT_WARPS": self.warps,
            "ATT_SHARED_TABLE": int(self.one_table),
            "ATT_MEANS": int(self.centered),
            "ATT_EARLY": int(self.early),
            "ATT_BESIDE": int(self.beside),
        }
        if self.copies:
            found["ATT_COPIES"] = self.copies
        return found | ({"ATT_SOFTCAP": 1} if self.softcap else {})


def config(
    k: Kind,
    v: Kind,
    head_dim: int,
    sets: int,
    *,
    softcap: bool,
    limit: int,
    one_table: bool = False,
    long: bool = False,
    centered: bool = False,
    early: bool = False,
) -> Config:
    """The best known; limit: bytes of shared memory of a multiprocessor; one_table: K and V are trellis types with the
    same codebook; long: all segments are (`attend_plan.long`); centered: keys are less a mean; early: the kernel before
    writes new keys and values, the one before that the queries, so that attention may begin before it where finding a
    path takes long."""
    if k.path or v.path:
        # A kilobyte of every block is the system's.
        found = _of_paths(k, v, head_dim, sets, softcap, one_table, long)
        every = (replace(c, centered=centered, early=early) for c in found)
        return next(made for made in every if made.shared + 1024 <= limit)
    width, slices = slices_of(head_dim)
    # Queries that meet means take registers: eight of them leave too few for two tiles.
    wide, tiles = max(k.bits, v.bits), 1 if max(k.bits, v.bits) >= 8 or (centered and sets == 2) else 2
    if long and wide <= 3 and sets == slices == 1 and not centered:
        # One block does what four would: a quarter of the partial results. Short segments would leave warps idle.
        made = Config(k, v, width, slices, sets, 1, 2, tiles, softcap, 4 * WARPS)
        if made.shared + 1024 <= limit:
            return made
    if wide < 8 and tiles == 2 and slices == 4 and sets == 2:
        # With two slices nothing is gained.
        made = Config(k, v, width, slices, sets, 8 // slices, 2, tiles, softcap, 2 * slices, apart=True)
        if made.ctas * (made.shared + 1024) <= limit:
            return made
    if wide == 16:
        ctas, stages = 1, 2
    elif sets == 2:
        ctas, stages = 2, 2
    elif wide == 8:
        ctas, stages = 2 if min(k.bits, v.bits) == 8 else 3, 3
    else:
        ctas, stages = 3 if wide >= 4 else 4, 2
    made = Config(k, v, width, slices, sets, ctas, stages, tiles, softcap, centered=centered)
    # A kilobyte of every block is the system's.
    while made.ctas > 1 and made.ctas * (made.shared + 1024) > limit:
        made = replace(made, ctas=made.ctas - 1)
    while made.stages > 2 and made.shared + 1024 > limit:
        made = replace(made, stages=made.stages - 1)
    if made.tiles > 1 and made.shared + 1024 > limit:
        made = replace(made, tiles=1)
    return made


def _of_paths(
    k: Kind, v: Kind, head_dim: int, sets: int, softcap: bool, one_table: bool, long: bool
) -> Iterator[Config]:
    """For trellis types, the best first: a table for every bank, two tiles at a time, many warps.

    One tile at a time leaves room for 16 warps. That is better where segments are short, and where two would leave room
    for eight (3 bits, two slices).
    """
    width, slices = slices_of(head_dim)
    wide = max(k.bits, v.bits)
    single = wide >= 8 or (sets == 1 and slices <= 2 and (not long or (wide == 3 and slices == 2)))
    most = 1 if single else 2
    for copies in (32, 16, 8):
        for tiles in range(most, 0, -1):
            # With two sets of queries a thread needs more registers than twelve warps leave it.
            for warps in (16, 12, 8) if sets == 1 else (8,):
                yield Config(k, v, width, slices, sets, 1, 1, tiles, softcap, warps, copies, one_table)
        yield Config(k, v, width, slices, sets, 1, 1, 1, softcap, 4, copies, one_table)
