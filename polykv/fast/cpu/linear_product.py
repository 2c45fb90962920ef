"""y[:, first:last] = x W[first:last]^T, for use inside a job of the team (`team`).

A step is cut into chunks of weight rows (and of activation rows when there are many); each chunk is one call of
`product` with the calling worker's own scratch memory of SCRATCH bytes. Everything is addresses and bytes; `code` is
what `linear_code.code(type, activations)` gives in Python:

    slot(code, INTEGERS)                   does this product read int8 rows? then first, for every row:
    quantize_row(x, cols, q8)              float32 [cols] -> 2 * cols bytes
    product(code, w, rows, cols, x, x_pitch, n, y, y_pitch, first, last, asked, then, scratch)

x is the float32 or int8 rows, x_pitch their distance in bytes (2 * cols for packed int8 rows). first is a multiple of
8; chunks may be any multiple of 8 rows of W. then is the address of the weights that this worker will probably read
next (see `linear_ahead`), 0 when that is unknown; asked is what it was in the product before. Neither matters to the
result. Row r of y depends on row r of x alone, bit for bit. A chunk may write elements of y outside [first, last) that
belong to W's last 8 rows, with the values that they have anyway.
"""

from __future__ import annotations

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.entry import invoke
from polykv.fast.cpu.linear_ahead import ahead_of, ask
from polykv.fast.cpu.linear_float import COLUMN_BYTES, COLUMNS, panel_f32, tile_f32
from polykv.fast.cpu.linear_types import (
    FEW,
    FLAGS,
    PANEL_BLOCK,
    PLAIN,
    PRODUCT,
    TILE,
    UNPACK,
    ZERO,
    forward,
    packed_bytes,
    pitch_at,
    row_bytes,
    slot,
)
from polykv.fast.cpu.q8 import BLOCK
from polykv.fast.cpu.simd import get_f32, load_f, put_f32, splat_f, store_f

# Blocks of 32 columns unpacked at a time (12 KB of codes and scales: they stay in the first-level cache), and rows of
# activations that share them.
BLOCKS, ROWS = 32, 128
# Up to so many rows are multiplied without storing what is unpacked, where a type has a kernel for that.
FEW_ROWS = 16
NOTHING = np.float32(0)
# Places in the scratch memory: unpacked codes, sums, unpacked floats.
SUMS = BLOCKS * PANEL_BLOCK
FLOATS = SUMS + ROWS * COLUMN_BYTES
SCRATCH = FLOATS + COLUMNS * COLUMN_BYTES


@kernel()
def product(
    code: int,
    w: int,
    rows: int,
    cols: int,
    x: int,
    x_pitch: int,
    n: int,
    y: int,
    y_pitch: int,
    first: int,
    last: int,
    asked: int,
    then: int,
    scratch: int,
) -> None:
    """Rows first .. last - 1 of W [rows, cols] at address w, times n rows at x, to columns of y (see above)."""
    invoke(slot(code, PRODUCT), (code, w, rows, cols, x, x_pitch, n, y, y_pitch, first, last, asked, then, scratch))


@kernel()
def product_q8(
    code: int,
    w: int,
    rows: int,
    cols: int,
    x: int,
    x_pitch: int,
    n: int,
    y: int,
    y_pitch: int,
    first: int,
    last: int,
    asked: int,
    then: int,
    scratch: int,
) -> None:
    """`product` of int8 activations."""
    few = slot(code, FEW) if n <= FEW_ROWS else 0
    step = row_bytes(code, cols)
    for r in range(0, n, ROWS):
        m = min(ROWS, n - r)
        xr, yr = x + r * x_pitch, y + r * y_pitch
        if rows < 8:
            # Too few rows for a tile: each fills one alone.
            for i in range(first, last):
                _tile_q8(code, w + i * step, 0, cols, xr, x_pitch, m, 0, 0, scratch)
                _store_one(scratch + SUMS, 32, m, yr + 4 * i, y_pitch)
        else:
            size, ahead, end = 8 * step // (cols // 32), w + first * step, w + last * step
            near = min(ahead_of(8 * step), end - ahead)
            if asked != ahead:
                ask(ahead, near)
            ahead += near
            for i in range(first, last, 8):
                # The last tile moves up to be whole; a row's result does not depend on its place in a tile.
                t = min(i, rows - 8)
                if ahead >= end:
                    ahead, end, size = then + ahead - end, 1 << 62, size if then != 0 else 0
                # Sums grow in memory of this worker's own: the last tile's y may be another's too (see above).
                at, pitch = w + t * step, pitch_at(code, rows, cols, t)
                if few != 0:
                    invoke(few, (at, pitch, cols // 32, xr, x_pitch, m, scratch + SUMS, ahead, size))
                else:
                    _tile_q8(code, at, pitch, cols, xr, x_pitch, m, ahead, size, scratch)
                _store(scratch + SUMS, 32, m, yr + 4 * t, y_pitch)
                ahead += 8 * step


@kernel()
def product_f32(
    code: int,
    w: int,
    rows: int,
    cols: int,
    x: int,
    x_pitch: int,
    n: int,
    y: int,
    y_pitch: int,
    first: int,
    last: int,
    asked: int,
    then: int,
    scratch: int,
) -> None:
    """`product` of float32 activations."""
    step = row_bytes(code, cols)
    for r in range(0, n, ROWS):
        m = min(ROWS, n - r)
        xr, yr = x + r * x_pitch, y + r * y_pitch
        if rows < 8:
            for i in range(first, last):
                _tile_f32(code, w + i * step, w + i * step, 0, 0, cols, xr, x_pitch, m, scratch)
                _store_one(scratch + SUMS, 64, m, yr + 4 * i, y_pitch)
        else:
            for i in range(first, last, 16):
                t, u = min(i, rows - 8), min(i + 8, rows - 8)
                pitch, other = pitch_at(code, rows, cols, t), pitch_at(code, rows, cols, u)
                _tile_f32(code, w + t * step, w + u * step, pitch, other, cols, xr, x_pitch, m, scratch)
                _store(scratch + SUMS, 64, m, yr + 4 * t, y_pitch)
                if i + 8 < last:
                    _store(scratch + SUMS + 32, 64, m, yr + 4 * u, y_pitch)


@kernel()
def _store(sums: int, step: int, n: int, y: int, y_pitch: int) -> None:
    for _ in range(n):
        store_f(y, load_f(sums))
        sums, y = sums + step, y + y_pitch


@kernel()
def _store_one(sums: int, step: int, n: int, y: int, y_pitch: int) -> None:
    for _ in range(n):
        put_f32(y, get_f32(sums))
        sums, y = sums + step, y + y_pitch


@kernel()
def _tile_q8(
    code: int, w: int, pitch: int, cols: int, x: int, x_pitch: int, n: int, ahead: int, size: int, scratch: int
) -> None:
    """Sums [n, 8] of 8 rows at w in scratch; with every block, `size` bytes from `ahead` on are asked for."""
    unpack, tile, zero, sums = slot(code, UNPACK), slot(code, TILE), slot(code, ZERO), scratch + SUMS
    for k in range(n):
        store_f(sums + 32 * k, splat_f(NOTHING))
    blocks = cols // 32
    while blocks > 0:
        count = min(BLOCKS, blocks)
        invoke(unpack, (w, pitch, count, scratch))
        invoke(tile, (zero, scratch, count, x, x_pitch, n, sums, ahead, size))
        blocks -= count
        if blocks > 0:
            step, less = forward(code, 32 * BLOCKS)
            w, pitch, x, ahead = w + step, pitch - less, x + BLOCK * BLOCKS, ahead + size * BLOCKS


@kernel()
def _prefetch(w: int, pitch: int, size: int) -> None:
    """Ask for `size` bytes of 8 rows: rows are too short and too many for the processor to foresee them."""
    for r in range(8):
        ask(w + r * pitch, size)


@kernel()
def _tile_f32(
    code: int, w: int, w2: int, pitch: int, pitch2: int, cols: int, x: int, x_pitch: int, n: int, scratch: int
) -> None:
    """Sums [n, 16] of 8 rows at w and 8 at w2 in scratch."""
    sums, floats = scratch + SUMS, scratch + FLOATS
    for k in range(2 * n):
        store_f(sums + 32 * k, splat_f(NOTHING))
    for column in range(0, cols, COLUMNS):
        count = min(COLUMNS, cols - column)
        size = packed_bytes(code, count)
        at, less = forward(code, column)
        ahead = at + packed_bytes(code, COLUMNS) if column + COLUMNS < cols else 16 * pitch
        _prefetch(w + ahead, pitch, size)
        _prefetch(w2 + ahead, pitch2, size)
        expand(code, w + at, pitch - less, count, scratch, floats)
        expand(code, w2 + at, pitch2 - less, count, scratch, floats + 32)
        tile_f32(floats, count, x + 4 * column, x_pitch, n, sums)


@kernel()
def expand(code: int, w: int, pitch: int, columns: int, codes: int, floats: int) -> None:
    """Up to COLUMNS columns of 8 rows as float32, one vector per column; `codes` is room for a panel of codes."""
    flags = slot(code, FLAGS)
    if flags & PLAIN:
        invoke(slot(code, UNPACK), (w, pitch, columns, floats))
    else:
        invoke(slot(code, UNPACK), (w, pitch, columns // 32, codes))
        panel_f32(flags, slot(code, ZERO), codes, columns // 32, floats)
