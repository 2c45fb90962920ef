"""Codes and scales of one head vector <-> its bytes in files, group by group (docs/FORMATS.md).

Which groups these are `geom` says: those of memory (packed layout) or of 128 values (exchange layout). For the types
that have kernels the two differ in nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_row import F16_, F32_, Q4_0_, Q8_0_
from polykv.fast.cpu.kv_layout import DIM, FAMILY, GROUP, GROUP_BYTES, STORED


@kernel()
def _put16(out: Any, at: int, v: int) -> None:
    out[at] = np.uint8(v & 255)
    out[at + 1] = np.uint8((v >> 8) & 255)


@kernel()
def _get16(b: Any, at: int) -> Any:
    return np.int64(b[at]) | (np.int64(b[at + 1]) << 8)


@kernel()
def _lloyd_store(codes: Any, first: int, g: int, out: Any, at: int) -> None:
    """Three-bit codes: the low two bits of four codes a byte, then the high bits of eight codes a byte."""
    low, high = at + 2, at + 2 + g // 4
    out[low : high + g // 8] = 0
    for j in range(g):
        c = np.int64(codes[first + j])
        out[low + (j >> 2)] |= np.uint8((c & 3) << (2 * (j & 3)))
        out[high + (j >> 3)] |= np.uint8((c >> 2) << (j & 7))


@kernel()
def _lloyd_load(b: Any, at: int, codes: Any, first: int, g: int) -> None:
    low, high = at + 2, at + 2 + g // 4
    for j in range(g):
        two = (b[low + (j >> 2)] >> (2 * (j & 3))) & 3
        codes[first + j] = np.uint32(two | (((b[high + (j >> 3)] >> (j & 7)) & 1) << 2))


@kernel()
def store_bytes(codes: Any, scales: Any, geom: Any, out: Any) -> None:
    """Write the bytes of one head vector."""
    family, dim, stored, group = geom[FAMILY], geom[DIM], geom[STORED], geom[GROUP]
    if family == F32_:
        for j in range(dim):
            _put16(out, 4 * j, np.int64(codes[j]) & 65535)
            _put16(out, 4 * j + 2, np.int64(codes[j]) >> 16)
        return
    if family == F16_:
        for j in range(dim):
            _put16(out, 2 * j, np.int64(codes[j]))
        return
    for i in range(stored // group):
        at, first = i * geom[GROUP_BYTES], i * group
        _put16(out, at, np.int64(scales[i]))
        if family == Q8_0_:
            for j in range(32):
                out[at + 2 + j] = np.uint8(codes[first + j])
        elif family == Q4_0_:
            for j in range(16):
                out[at + 2 + j] = np.uint8(codes[first + j] | (codes[first + j + 16] << np.uint32(4)))
        else:
            _lloyd_store(codes, first, group, out, at)


@kernel()
def load_bytes(b: Any, geom: Any, codes: Any, scales: Any) -> None:
    """Read the bytes of one head vector."""
    family, dim, stored, group = geom[FAMILY], geom[DIM], geom[STORED], geom[GROUP]
    if family == F32_:
        for j in range(dim):
            codes[j] = np.uint32(_get16(b, 4 * j) | (_get16(b, 4 * j + 2) << 16))
        return
    if family == F16_:
        for j in range(dim):
            codes[j] = np.uint32(_get16(b, 2 * j))
        return
    for i in range(stored // group):
        at, first = i * geom[GROUP_BYTES], i * group
        scales[i] = np.uint16(_get16(b, at))
        if family == Q8_0_:
            for j in range(32):
                codes[first + j] = np.uint32(b[at + 2 + j])
        elif family == Q4_0_:
            for j in range(16):
                codes[first + j] = np.uint32(b[at + 2 + j] & 15)
                codes[first + j + 16] = np.uint32(b[at + 2 + j] >> 4)
        else:
            _lloyd_load(b, at, codes, first, group)
