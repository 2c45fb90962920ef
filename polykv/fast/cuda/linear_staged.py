"""Products of 2 to 32 rows of int8 with packed weights that come through shared memory (kernels/linear_staged.cu).

A block has a multiprocessor to itself. Wide matrices have a block for each, or several; the columns of narrow ones are
divided among two blocks of a cluster, which add their sums through each other's shared memory. So x, which every block
reads for its columns, is read less often, and all multiprocessors have work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from polykv.fast.cuda.device import device
from polykv.fast.cuda.source import Define
from polykv.fast.cuda.weights import type_name
from polykv.types import WEIGHT_BLOCK, MatrixType, QuantTensor, WeightType

# Columns of a tile, rows of a band (kernels/staged.cuh), and rows of x that the largest kernel takes.
TILE, BAND, ROWS = 128, 32, 32
# Bytes of a row of a tile, by type: those that people choose for most matrices of a model.
BYTES: dict[MatrixType, int] = {
    WeightType.Q4_0: 72,
    WeightType.Q8_0: 136,
    WeightType.Q4_K: 72,
    WeightType.Q6_K: 104,
}
# Types with minimums need a second number for each step of x.
MINIMUM = (WeightType.Q4_K,)
# Most bands of a block, and the least for which its warps do not share the columns four ways.
MOST, WIDE = 8, 5
# What a block takes to start and to end, in the time of a band.
START = 3
# tiles, ahead, turns of a cut: the best first.
DEPTHS = ((2, 2, 3), (1, 2, 3), (1, 2, 2))
# Compute capability that has clusters; a kilobyte of every block's shared memory is the system's.
CLUSTERS, RESERVED = (9, 0), 1024


@dataclass(frozen=True)
class Cut:
    """How a matrix is divided. bands: of 32 rows of W that a block has; parts: its warps along the columns; tiles: of a
    warp at a time; ahead: such times that are under way; turns: of x; split: blocks that share the columns."""

    bands: int
    parts: int
    tiles: int
    ahead: int
    turns: int
    split: int

    @property
    def height(self) -> int:
        """Rows of W that a block has."""
        return BAND * self.bands

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.bands * self.parts

    def pitch(self, kind: MatrixType) -> int:
        """Bytes between rows of W in shared memory: an odd multiple of 16."""
        size = BYTES[kind] * self.tiles + 4 * (kind is WeightType.Q6_K)
        return 16 * (-(-size // 16) | 1)

    def shared(self, kind: MatrixType, rows: int) -> int:
        """Bytes of shared memory: x, W and barriers; at the end sums of all parts."""
        x = self.turns * self.tiles * rows * (TILE + 16 * (1 + (kind in MINIMUM)))
        w = self.ahead * self.height * self.pitch(kind)
        return max(self.parts * (x + w) + 16 * self.turns, 4 * self.parts * rows * (self.height + 4))

    def defines(self, kind: MatrixType, rows: int) -> dict[str, Define]:
        """What kernels/linear_staged.cu is specialised by."""
        return {
            "WEIGHT_TYPE": type_name(kind),
            "LINEAR_ROWS": rows,
            "LINEAR_BANDS": self.bands,
            "LINEAR_PARTS": self.parts,
            "LINEAR_TILES": self.tiles,
            "LINEAR_AHEAD": self.ahead,
            "LINEAR_TURNS": self.turns,
            "LINEAR_SPLIT": self.split,
        }


def cut_of(w: QuantTensor) -> Cut | None:
    """How W is divided, which on one device depends on its type and shape alone, so that rows of x do not depend on how
    many there are; None where kernels/linear_tiles.cu takes it."""
    made = device()
    return cut(w.type, w.rows, w.cols, made.processors, made.shared, made.capability >= CLUSTERS)


@cache
def cut(kind: MatrixType, rows: int, cols: int, processors: int, shared: int, clusters: bool) -> Cut | None:
    """The same for a device; shared: bytes of a multiprocessor.

    >>> cut(WeightType.Q4_0, 28672, 4096, 132, 228 << 10, True)
    Cut(bands=7, parts=2, tiles=2, ahead=2, turns=3, split=1)
    >>> cut(WeightType.Q4_0, 6144, 4096, 132, 228 << 10, True)
    Cut(bands=3, parts=4, tiles=1, ahead=2, turns=3, split=2)
    """
    if kind not in BYTES or cols % (2 * TILE) or rows % 4 or rows < BAND:
        return None
    # Copies of the two bytes that a block of Q6_K has for itself are of four.
    if rows * (cols // WEIGHT_BLOCK[kind][0]) % 2:
        return None
    split = 2 if clusters and -(-rows // (4 * BAND)) < processors else 1

    def time(bands: int) -> int:
        return -(-(-(-rows // (BAND * bands)) * split) // processors) * (bands + START)

    for bands in sorted(range(min(MOST, rows // BAND), 0, -1), key=time):
        parts = 2 if bands >= WIDE else 4
        # Few columns are not worth long times.
        depths = DEPTHS if cols // TILE // split >= 8 * parts or parts == 2 else DEPTHS[1:]
        made = (Cut(bands, parts, *depth, split) for depth in depths)
        found = next((c for c in made if c.shared(kind, ROWS) + RESERVED <= shared), None)
        if found is not None:
            return found
    return None
