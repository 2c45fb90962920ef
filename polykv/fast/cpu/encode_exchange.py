"""Codes and scales of one head vector <-> the exchange layout (docs/FORMATS.md), byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_row import F16_, F32_, Q4_0_, Q8_0_
from polykv.fast.cpu.kv_layout import DIM, FAMILY, GROUP, SIGNS2, STORED, X_BYTES


@kernel()
def _put16(out: Any, at: int, v: int) -> None:
    out[at] = np.uint8(v & 255)
    out[at + 1] = np.uint8((v >> 8) & 255)


@kernel()
def _get16(b: Any, at: int) -> Any:
    return np.int64(b[at]) | (np.int64(b[at + 1]) << 8)


@kernel()
def _lloyd_store(codes: Any, first: int, g: int, table: Any, out: Any, at: int) -> None:
    """One block of 128; a group of g < 128 values repeats, mirrored where the rotation signs differ (see Codec)."""
    out[at + 2 : at + 50] = 0
    zero = True
    for j in range(g):
        zero = zero and codes[first + j] == 4
    for j in range(128):
        i = j % g
        idx = np.int64(codes[first + i])
        # A zero vector has no sign: all its codes are the upper middle level.
        if table[SIGNS2 + i] != table[SIGNS2 + j] and not zero:
            idx = 7 - idx
        out[at + 2 + (j >> 2)] |= np.uint8((idx & 3) << (2 * (j & 3)))
        out[at + 34 + (j >> 3)] |= np.uint8((idx >> 2) << (j & 7))


@kernel()
def exchange_store(codes: Any, scales: Any, geom: Any, table: Any, out: Any) -> None:
    """Write the exchange bytes of one head vector."""
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
        at, first = i * geom[X_BYTES], i * group
        _put16(out, at, np.int64(scales[i]))
        if family == Q8_0_:
            for j in range(32):
                out[at + 2 + j] = np.uint8(codes[first + j])
        elif family == Q4_0_:
            for j in range(16):
                out[at + 2 + j] = np.uint8(codes[first + j] | (codes[first + j + 16] << np.uint32(4)))
        else:
            _lloyd_store(codes, first, group, table, out, at)


@kernel()
def exchange_load(b: Any, geom: Any, codes: Any, scales: Any) -> None:
    """Read the exchange bytes of one head vector."""
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
        at, first = i * geom[X_BYTES], i * group
        scales[i] = np.uint16(_get16(b, at))
        if family == Q8_0_:
            for j in range(32):
                codes[first + j] = np.uint32(b[at + 2 + j])
        elif family == Q4_0_:
            for j in range(16):
                codes[first + j] = np.uint32(b[at + 2 + j] & 15)
                codes[first + j + 16] = np.uint32(b[at + 2 + j] >> 4)
        else:
            for j in range(group):
                low = (b[at + 2 + (j >> 2)] >> (2 * (j & 3))) & 3
                high = (b[at + 34 + (j >> 3)] >> (j & 7)) & 1
                codes[first + j] = np.uint32(low | (high << 2))
