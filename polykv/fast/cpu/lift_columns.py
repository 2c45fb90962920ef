"""Values of plain types, whose records are dims-major: 16 dims of 8 tokens, lanes along tokens or along dims."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import (
    BLOCK,
    F16_,
    F32_,
    FAMILY,
    PANEL,
)
from polykv.fast.cpu.simd import load_f, load_u16x8, store_f
from polykv.fast.cpu.simd_core import I16, I64, Addr, const, op, read, types, write
from polykv.fast.cpu.simd_math import bits_f, low_half, shl
from polykv.fast.cpu.simd_wide import I32X16, joined, lanes

# Dims of a panel, and bytes of one of its rows.
WIDTH, STEP = PANEL, 64


@kernel()
def half8(p: int) -> Any:
    """8 float16 at p."""
    return low_half(load_u16x8(p))


@op(types.void, Addr, types.int64, Addr)
def upper_lines(b: Any, p: Any, step: Any, out: Any) -> None:
    """Rows of 8 words `step` bytes apart at p, the upper halves of floats, to 8 rows of 16 floats at `out`: 16 dims of
    8 tokens. They are turned while they are words, in half of the vectors that floats take."""
    rows = [read(b, b.add(p, b.mul(step, I64(j))), ir.VectorType(I16, 8)) for j in range(WIDTH)]
    while len(rows) > 4:
        rows = [joined(b, x, y) for x, y in zip(rows[::2], rows[1::2], strict=True)]
    # Of 8 dims each: four tokens.
    order = [[8 * j + t for t in range(start, start + 4) for j in range(8)] for start in (0, 4)]
    turned = [[lanes(b, x, y, four) for four in order] for x, y in (rows[:2], rows[2:])]
    for t in range(8):
        near, far = (half[t // 4] for half in turned)
        words = lanes(b, near, far, [8 * (t % 4) + 32 * half + j for half in (0, 1) for j in range(8)])
        wide = b.shl(b.zext(words, I32X16), const(I32X16, 16))
        write(b, b.add(out, I64(STEP * t)), wide)


@kernel()
def columns16(rec: int, t: int, geom: Any, d: int, out: int) -> None:
    """Dims d .. d + 15 (d a multiple of 16) of tokens t .. t + 7 to halves of 16 rows of 64 bytes at `out`."""
    family, block = geom[FAMILY], geom[BLOCK]
    if family == F32_:
        for p in range(rec + 4 * (d * block + t), rec + 4 * ((d + WIDTH) * block + t), 4 * block):
            store_f(out, load_f(p))
            out += STEP
    elif family == F16_:
        for p in range(rec + 2 * (d * block + t), rec + 2 * ((d + WIDTH) * block + t), 2 * block):
            store_f(out, half8(p))
            out += STEP
    else:
        for p in range(rec + 2 * (d * block + t), rec + 2 * ((d + WIDTH) * block + t), 2 * block):
            store_f(out, bits_f(shl(load_u16x8(p), np.int32(16))))
            out += STEP
