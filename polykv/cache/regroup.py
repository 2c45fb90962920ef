"""Blocks of a pool file as blocks of another size: backends store cells in blocks of 8 (`cpu`) or 64 (`cuda`).

Both sizes are whole pieces of the smaller one. A block of the pool is a row of pieces of the file; sequences share it
when they share all of its pieces, else each has a copy. What the file does not hold is left zero: cells behind the last
token, and cells that no later token reads, before a window or of units that are coded. They come only with larger
blocks, whose first one may begin before the first cell of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from polykv.cache.container import Container
from polykv.cache.group import CacheGroup
from polykv.types import I32, U8


@dataclass(frozen=True, eq=False)
class Regrouped:
    """Blocks of one group in the pool's size, numbered from 0.

    tables: of every sequence, -1 where it holds no block. pieces int32 [n, k]: what every block is made of; piece
    j c + i is piece i of the c pieces (`each`) of the file's block j, and -1 is zeros. since: for every sequence the
    position before which cells of its blocks may be missing.
    """

    tables: tuple[I32, ...]
    pieces: I32
    each: int
    since: tuple[int, ...]

    def read(self, file: Container, name: str, first: int, n: int) -> U8:
        """Packed data of blocks first .. first + n - 1 out of a section of the file."""
        pieces = self.pieces[first : first + n]
        rows = np.unique(pieces[pieces >= 0] // self.each)
        data = file.chosen(name, rows)
        # Sizes in full: there may be no rows, where all that is read is zeros.
        cut = data.reshape(len(rows) * self.each, data.shape[1] // self.each, *data.shape[2:])
        found = np.zeros((*pieces.shape, *cut.shape[1:]), np.uint8)
        there = pieces >= 0
        at = np.searchsorted(rows, pieces[there] // self.each) * self.each + pieces[there] % self.each
        found[there] = cut[at]
        return found.reshape(len(pieces), pieces.shape[1] * cut.shape[1], *data.shape[2:])


def fits(size: int, other: int) -> bool:
    """Whether blocks of one size are whole blocks of the other.

    >>> fits(8, 64), fits(64, 8), fits(64, 48)
    (True, True, False)
    """
    return min(size, other) > 0 and max(size, other) % min(size, other) == 0


def regroup(
    tables: Sequence[I32], lengths: Sequence[int], lacking: Sequence[int], old: CacheGroup, new: CacheGroup
) -> Regrouped:
    """tables, of sequences of so many tokens: numbers of the file's blocks, as group `old` cuts cells; to blocks of
    group `new`. lacking: for every sequence the position before which the file's blocks may lack cells already."""
    piece = min(old.size, new.size)
    each, per = old.size // piece, new.size // piece
    number: dict[tuple[int, ...], int] = {}
    made, since = [], []
    for table, length, known in zip(tables, lengths, lacking, strict=True):
        rows = _rows(table, each, new.n_blocks(length), per)
        own, filled = np.full(len(rows), -1, np.int32), -(-length // piece)
        missing = False
        for i in new.held(length):
            key = tuple(rows[i].tolist())
            own[i] = number.setdefault(key, len(number))
            missing |= -1 in key[: max(0, filled - i * per)]
        made.append(own)
        since.append(max(known, old.first_block(length) * old.size if missing else 0))
    pieces = np.array(list(number), np.int32).reshape(len(number), per)
    return Regrouped(tuple(made), pieces, each, tuple(since))


def _rows(table: I32, each: int, n: int, per: int) -> npt.NDArray[np.int32]:
    """Pieces [n, per] of a sequence in the order of positions."""
    rows = np.full(n * per, -1, np.int32)
    if len(table) == 0:
        # What a file without tokens says about the size of its blocks was never compared with anything.
        return rows.reshape(n, per)
    pieces = np.where(table[:, None] < 0, -1, table[:, None] * each + np.arange(each, dtype=np.int32)).reshape(-1)
    rows[: len(pieces)] = pieces[: len(rows)]
    return rows.reshape(n, per)
