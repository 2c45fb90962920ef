"""Tiles of trellis types (kernels/attend_trellis.cuh): runs of dims as strings of bits, and the table of levels.

Codes here are states: the last 6 + k bits of a path at a value, whose own k bits are the upper ones (ref/trellis.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polykv.types import U8

LANES = 32
# Bits of a state that are older than its own symbol, and entries of a table.
PREFIX, ENTRIES = 6, 1024
States = npt.NDArray[np.unsignedinteger]
U32 = npt.NDArray[np.uint32]


def words(states: States, bits: int, *, values: bool) -> U32:
    """Words [n, lanes, N] of the symbols of states [n, 32 cells, W]."""
    n, _, w = states.shape
    x = states >> PREFIX
    if values:
        # Cell 8 j + 2 t + i; dim W / 8 g + a.
        runs = x.reshape(n, 4, 4, 2, 8, w // 8).transpose(0, 4, 2, 1, 3, 5)  # n, g, t, j, i, a
    else:
        # Cell 8 j + g; dim W / 4 t + a.
        runs = x.reshape(n, 4, 8, 4, w // 4).transpose(0, 2, 3, 1, 4)  # n, g, t, j, a
    each = runs.reshape(n, LANES, w)
    stream = (each[..., None] >> np.arange(bits, dtype=each.dtype)) & 1
    packed = np.packbits(stream.reshape(n, LANES, -1).astype(np.uint8), axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4").astype(np.uint32)


def prefixes(states: States, *, values: bool) -> U8:
    """Bytes [n, 32] of what comes before a slice: the older bits of the first states of states [n, 32 cells, W]."""
    n = len(states)
    first = ((states[:, :, 0] & ((1 << PREFIX) - 1)) << 2).astype(np.uint8)
    order = (0, 2, 1, 3) if values else (0, 2, 1)
    return np.ascontiguousarray(first.reshape(n, 4, *((4, 2) if values else (8,))).transpose(order)).reshape(n, 32)


def table(levels: npt.NDArray[np.int8], bits: int) -> U32:
    """Entries of two values in a row, by ten of the 6 + 2 k bits that they depend on; levels: of every state.

    Of 2 bits a value: (a, 0, b, 0). Of 3: (a0, b0, a1, b1), for the first of the twelve bits being 0 or 1, and the
    last.
    """
    ten, states, found = np.arange(ENTRIES), len(levels) - 1, np.zeros((ENTRIES, 4), np.int8)
    if bits == 2:
        found[:, 0], found[:, 2] = levels[ten & states], levels[ten >> bits]
    else:
        for i in range(2):
            found[:, 2 * i] = levels[(ten << 1 | i) & states]
            found[:, 1 + 2 * i] = levels[(ten << 1 | i << 11) >> bits]
    return found.view(np.uint32)[:, 0]
