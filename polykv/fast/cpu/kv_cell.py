"""Codes and scales of one head vector <-> one cell (token) of a resident record (`kv_layout` has the picture)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_row import F16_, F32_, Q4_0_, Q8_0_
from polykv.fast.cpu.kv_layout import BLOCK, FAMILY, GROUP, SCALE_AT, STORED
from polykv.fast.cpu.lift_simd import pack3
from polykv.fast.cpu.simd import addr, get_i32, put_i8


@kernel()
def cell_store(codes: Any, scales: Any, geom: Any, rec: Any, t: int) -> None:
    """Write token t of a record (uint8 [RECORD])."""
    family, stored, group, block = geom[FAMILY], geom[STORED], geom[GROUP], geom[BLOCK]
    if family == F32_:
        words = rec.view(np.uint32)
        for j in range(stored):
            words[j * block + t] = codes[j]
        return
    if family == F16_:
        halves = rec.view(np.uint16)
        for j in range(stored):
            halves[j * block + t] = np.uint16(codes[j])
        return
    scale_words = rec.view(np.uint16)
    scale_at = geom[SCALE_AT] // 2
    for i in range(stored // group):
        scale_words[scale_at + i * block + t] = scales[i]
    if family == Q8_0_:
        to, code = addr(rec) + t, addr(codes)
        for j in range(stored):
            put_i8(to + block * j, get_i32(code + 4 * j))
    elif family == Q4_0_:
        for i in range(stored // 32):
            for j in range(16):
                c = codes[32 * i + j] | (codes[32 * i + j + 16] << np.uint32(4))
                rec[(16 * i + j) * block + t] = np.uint8(c)
    else:
        row = t * (stored // 8 * 3)
        for i in range(stored // 8):
            word = pack3(addr(codes) + 32 * i)
            for b in range(3):
                put_i8(addr(rec) + row + 3 * i + b, word >> (8 * b))


@kernel()
def cell_load(geom: Any, rec: Any, t: int, codes: Any, scales: Any) -> None:
    """Read token t of a record."""
    family, stored, group, block = geom[FAMILY], geom[STORED], geom[GROUP], geom[BLOCK]
    if family == F32_:
        words = rec.view(np.uint32)
        for j in range(stored):
            codes[j] = words[j * block + t]
        return
    if family == F16_:
        halves = rec.view(np.uint16)
        for j in range(stored):
            codes[j] = np.uint32(halves[j * block + t])
        return
    scale_words = rec.view(np.uint16)
    scale_at = geom[SCALE_AT] // 2
    for i in range(stored // group):
        scales[i] = scale_words[scale_at + i * block + t]
    if family == Q8_0_:
        for j in range(stored):
            codes[j] = np.uint32(rec[j * block + t])
    elif family == Q4_0_:
        for i in range(stored // 32):
            for j in range(16):
                c = rec[(16 * i + j) * block + t]
                codes[32 * i + j] = np.uint32(c & 15)
                codes[32 * i + j + 16] = np.uint32(c >> 4)
    else:
        row = t * (stored // 8 * 3)
        for i in range(stored // 8):
            word = np.uint32(0)
            for b in range(3):
                word |= np.uint32(rec[row + 3 * i + b]) << np.uint32(8 * b)
            for j in range(8):
                codes[8 * i + j] = (word >> np.uint32(3 * j)) & np.uint32(7)
