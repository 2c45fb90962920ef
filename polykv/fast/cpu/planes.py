"""Output matrices in two planes, with what a screen must know of their rows (twin of `polykv.ref.screen`).

The matrix is converted piece by piece, so that a caller can give back memory of the file meanwhile. Lengths are sums of
squares in float32, 8 rows side by side; how far they may be off is added to the bounds (`_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_planes import LOWER, MIDDLE, NIBBLES, UPPER
from polykv.fast.cpu.linear_types import LOWER_ROW, UPPER_ROW, slot
from polykv.fast.cpu.simd import get_f32, splat_f, splat_i, store_f, store_u16x8
from polykv.fast.cpu.simd_math import field, fma, low_half, mul_f, sub_i, to_f
from polykv.fast.cpu.simd_planes import store_planes
from polykv.fast.cpu.simd_weights import gather2, gather16
from polykv.fast.cpu.team import TEAM, claim, finish, wait
from polykv.types import F32, HeadWeights, QuantTensor, Resident, Screen, WeightType

# Bytes of the matrix that are converted at a time, and tiles that a worker takes.
PIECE, CHUNK = 4 << 20, 16
# Limits of `inverse`: so large a spread of factors says all that there is to say (see `polykv.ref.screen`).
LEAST, MOST = 1.0, 1024.0
NOTHING, LARGEST_CODE = np.float32(0), 128

# The integers of a job: addresses of the file's rows and of the two planes, all of the piece's first row, of squares of
# factors by column and by block, and of what comes out; ROWS is the piece's.
SOURCE, TO_UPPER, TO_LOWER, ROWS, COLS, SQUARES, SUMS, LEFT_OUT, LENGTHS = range(9)


@kernel()
def _left_out(codes: Any, squares: int) -> Any:
    """Sum over 32 columns of squares of factors times squares of what lower nibbles differ from MIDDLE by."""
    total = splat_f(NOTHING)
    for i in range(8):
        v = codes[i]
        for k in range(4):
            x = to_f(sub_i(field(v, 8 * k, 15), splat_i(MIDDLE)))
            total = fma(mul_f(x, x), splat_f(get_f32(squares + 16 * i + 4 * k)), total)
    return total


@kernel()
def _tile(source: int, pitch: int, blocks: int, upper: int, lower: int, squares: int, sums: int) -> Any:
    """Convert 8 rows; squares of the length of what an estimate leaves out, and at least of the rows themselves."""
    left, length = splat_f(NOTHING), splat_f(NOTHING)
    for _ in range(blocks):
        scales, first, second = gather2(source, pitch), gather16(source + 2, pitch), gather16(source + 18, pitch)
        store_u16x8(upper, scales)
        store_planes(upper + NIBBLES, lower, first, second)
        d = low_half(scales)
        d = mul_f(d, d)
        left = fma(d, _left_out(first + second, squares), left)
        length = fma(d, splat_f(get_f32(sums)), length)
        source, upper, lower, squares, sums = source + 34, upper + UPPER, lower + LOWER, squares + 128, sums + 4
    return left, length


@kernel()
def _body(job: int, desk: int, worker: int, workers: int) -> None:
    tiles, blocks = slot(job, ROWS) // 8, slot(job, COLS) // 32
    pitch, chunks = 34 * blocks, -(-tiles // CHUNK)
    chunk, done = claim(desk, 0), 0
    while chunk < chunks:
        for t in range(CHUNK * chunk, min(CHUNK * chunk + CHUNK, tiles)):
            upper, lower = slot(job, TO_UPPER) + UPPER * blocks * t, slot(job, TO_LOWER) + LOWER * blocks * t
            at = slot(job, SOURCE) + 8 * pitch * t
            left, length = _tile(at, pitch, blocks, upper, lower, slot(job, SQUARES), slot(job, SUMS))
            store_f(slot(job, LEFT_OUT) + 32 * t, left)
            store_f(slot(job, LENGTHS) + 32 * t, length)
        chunk, done = claim(desk, 0), done + 1
    finish(desk, 0, done)
    wait(desk, 0, chunks)


def prepare_head(w: HeadWeights, inverse: F32, *, converted: Callable[[int], None]) -> HeadWeights:
    """The same head with its matrix (Q8_0, rows a multiple of 8) in planes, and a screen.

    inverse float32 [E]: 1 / S, in [1, 1024]. converted(row) is called when the rows before `row` are not read any more.
    A head that cannot be screened, of another type, capped, or with scales that are not finite, is returned as it is.
    """
    rows, cols = w.out.rows, w.out.cols
    if w.out.type != WeightType.Q8_0 or rows % 8 or rows == 0 or w.softcap:
        return w
    if inverse.shape != (cols,) or not ((inverse >= LEAST) & (inverse <= MOST)).all():
        raise ValueError(f"inverse must be {cols} numbers in [{LEAST:g}, {MOST:g}]")
    inverse = np.ascontiguousarray(inverse, np.float32)
    squares = _upwards(1 / inverse.astype(np.float64) ** 2)
    sums = _upwards(squares.reshape(-1, 32).astype(np.float64).sum(axis=1) * LARGEST_CODE**2)
    source, planes = np.ascontiguousarray(w.out.data), np.empty(w.out.data.shape, np.uint8)
    bounds, lengths = np.empty(rows, np.float32), np.empty(rows, np.float32)
    step = max(8, PIECE // source.shape[1] // 8 * 8)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        upper = address(planes) + cols // 32 * UPPER_ROW * first
        lower = address(planes) + cols // 32 * (UPPER_ROW * rows + LOWER_ROW * first)
        places = (address(source) + source.shape[1] * first, upper, lower, last - first, cols)
        results = (address(bounds) + 4 * first, address(lengths) + 4 * first)
        job = np.array((*places, address(squares), address(sums), *results), np.int64)
        with TEAM.lock:
            TEAM.run(entry(_body, 4), address(job))
        converted(last)
        bounds[first:last], lengths[first:last] = _bounds(bounds[first:last], lengths[first:last], cols // 32)
    largest = float(lengths.max())
    if not np.isfinite(largest):
        return w
    return replace(w, out=QuantTensor(Resident.Q8_0_PLANES, planes, cols), screen=Screen(inverse, bounds, largest))


def _bounds(left_out: F32, lengths: F32, blocks: int) -> tuple[F32, F32]:
    """Bounds and lengths of rows from the squares that the kernel has added up.

    All terms are positive, so a sum is off by a part of itself: a rounding for each of 32 columns in a block and of the
    blocks, and a few for each term. The second term of a bound is for rounding in the products (`polykv.ref.screen`).
    """
    grown = 1 + (blocks + 40) * 2.0**-23
    length = np.sqrt(lengths.astype(np.float64) * grown)
    left = np.sqrt(left_out.astype(np.float64) * grown)
    return _upwards(left + (blocks + 2) * 2.0**-22 * length), _upwards(length)


def _upwards(x: np.ndarray) -> F32:
    """float32 that is not smaller."""
    return (x * (1 + 2.0**-22)).astype(np.float32)
