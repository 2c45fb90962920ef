"""Memory in pages of 2 MiB, which the processor translates once instead of 512 times.

Such arrays do not come from NumPy. What malloc gets back it keeps for later: holes that stay resident beside the
arrays; and what it gives out of them is written with zeros first, padding included. An anonymous mapping goes back to
the system with the last array that shows it, is zero without being written, and takes memory only where it was touched.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import sys

import numpy as np

from polykv.types import U8

LARGE = 2 << 20


def zeroed(nbytes: int) -> U8:
    """A zeroed array of bytes that begins at the border of a large page and lies in as many as it fills, where the
    system has them. The rest lies in small ones: no array takes more memory than it has bytes, rounded up to 4 KiB.

    Raises MemoryError.
    """
    mapping = _mapped(nbytes + LARGE)
    first = -np.frombuffer(mapping, np.uint8, 1).ctypes.data % LARGE
    filled = nbytes // LARGE * LARGE
    if sys.platform == "linux" and filled:
        # EINVAL: a kernel without large pages.
        with contextlib.suppress(OSError):
            # Where all memory gets large pages unasked, the rest would fill one, too.
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
            mapping.madvise(mmap.MADV_HUGEPAGE, first, filled)
    return np.frombuffer(mapping, np.uint8, nbytes, first)


def _mapped(nbytes: int) -> mmap.mmap:
    """Anonymous memory of this process alone: what could be shared is in large pages only where the system says so."""
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OverflowError as e:
        raise MemoryError(f"{nbytes} bytes are more than addresses") from e
    except OSError as e:
        if e.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"the system has no {nbytes} bytes left") from e
