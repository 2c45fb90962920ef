"""Arrays that begin at a cache line.

Workers write to neighbouring parts of an array, in pieces of whole cache lines, counted from its beginning. If that
lies within a line, two workers write to the same line at every border between them, and the line travels to and fro:
for 30 ns between cores with a common cache, for 150 to 200 ns between others (two dies, two sockets, or whatever cores
a virtual machine was given).
"""

from __future__ import annotations

import math

import numpy as np

from polykv.types import F32, U8

LINE = 64


def aligned(nbytes: int) -> U8:
    """A zeroed array of bytes."""
    raw = np.zeros(nbytes + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + nbytes]


def aligned_floats(*shape: int) -> F32:
    """An array of float32 with arbitrary contents."""
    raw = np.empty(math.prod(shape) + LINE // 4, np.float32)
    first = -raw.ctypes.data % LINE // 4
    return raw[first : first + math.prod(shape)].reshape(shape)
