"""The constants of a trellis type as kernels read them, in the orders in which `simd_trellis` wants levels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from polykv.types import F32, Codec

# Parts of the constants, each as long as there are states: the codebook; levels in the order of even steps, and in that
# of odd steps and of eight groups; ranks among equally good last states.
BOOK, EVEN, ODD, RANK, PARTS = range(5)


@lru_cache(maxsize=64)
def constants(codec: Codec) -> F32:
    """The codebook of a trellis codec as the search reads it, float32 [PARTS states]."""
    table = parts(np.array(codec.centroids, np.float32), codec.bits)
    table.flags.writeable = False
    return table


def parts(book: F32, bits: int) -> F32:
    """The same of a codebook alone."""
    n, symbols = len(book), 1 << bits
    # [u, j, p], see `simd_trellis`.
    cube = book.reshape(symbols, n >> 2 * bits, symbols)
    odd = cube.transpose(1, 2, 0).ravel()
    if bits == 3:
        even = cube.transpose(2, 0, 1).ravel()
    else:
        # [u, highest bit of j, the rest of j, p].
        even = book.reshape(4, 2, 8, 4).transpose(2, 3, 0, 1).ravel()
    s = np.arange(n)
    rank = _reversed(s >> 5, n // 32) * 32 + _reversed(s & 31, 32)
    return np.concatenate([book, even, odd, rank], dtype=np.float32)


def _reversed(values: Any, n: int) -> Any:
    """Numbers below n, a power of two, with their bits in reverse."""
    width = n.bit_length() - 1
    return sum((values >> b & 1) << width - 1 - b for b in range(width))
