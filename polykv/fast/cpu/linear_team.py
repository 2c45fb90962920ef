"""Phases of a job of the team (`team`): norm and int8 form of rows, products with packed weights."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats
from polykv.fast.cpu.linear_product import ROWS, product
from polykv.fast.cpu.norm import rms_row
from polykv.fast.cpu.q8 import quantize_row
from polykv.fast.cpu.team import claim, finish_and_claim, wait

# Activation rows of a chunk take at most this much, so that they stay in the second-level cache; and weights of a chunk
# are at least so many that taking it from the counter does not matter.
ROW_BYTES, WEIGHTS = 1 << 18, 1 << 14
# Rows per chunk when workers share the quantization.
QUANTIZE_ROWS = 8


@kernel()
def row_chunk(cols: int, n: int) -> Any:
    """Activation rows per chunk: a multiple of 4, up to n."""
    fit = max(4, ROW_BYTES // (2 * cols) // 4 * 4)
    return max(1, min(n, min(fit, ROWS)))


@kernel()
def weight_chunk(rows: int, cols: int, n: int, workers: int) -> Any:
    """Weight rows per chunk: a multiple of 16; 16 chunks for few workers, 2 each for many, if there is enough to do."""
    share = -(-rows // (max(16, 2 * workers) * max(1, -(-n // row_chunk(cols, n)))))
    least = -(-WEIGHTS // (cols * min(n, 8) + 1))
    return -(-max(share, least) // 16) * 16


@kernel()
def quantize_rows(x: int, x_pitch: int, cols: int, first: int, last: int, q8: int) -> None:
    """Rows first .. last - 1 of x to int8 rows of 2 * cols bytes at q8."""
    for r in range(first, last):
        quantize_row(x + r * x_pitch, cols, q8 + 2 * cols * r)


@kernel()
def product_phase(
    desk: int,
    phase: int,
    workers: int,
    code: int,
    w: int,
    rows: int,
    cols: int,
    x: int,
    x_pitch: int,
    n: int,
    y: int,
    y_pitch: int,
    scratch: int,
) -> None:
    """One phase of a job (see `team`): y [n, rows] = x W^T, shared among the workers."""
    step, group = row_chunk(cols, n), weight_chunk(rows, cols, n, workers)
    groups, chunks = -(-rows // group), -(-rows // group) * -(-n // step)
    chunk = claim(desk, phase)
    while chunk < chunks:
        r, first = chunk // groups * step, chunk % groups * group
        m, last = min(step, n - r), min(first + group, rows)
        product(
            code,
            w,
            rows,
            cols,
            x + r * x_pitch,
            x_pitch,
            m,
            y + r * y_pitch,
            y_pitch,
            first,
            last,
            scratch,
        )
        chunk = finish_and_claim(desk, phase)
    wait(desk, phase, chunks)


@kernel()
def quantize_phase(desk: int, phase: int, x: int, x_pitch: int, cols: int, n: int, q8: int) -> None:
    """One phase of a job: n rows of x to int8 rows at q8."""
    chunks = -(-n // QUANTIZE_ROWS)
    chunk = claim(desk, phase)
    while chunk < chunks:
        first = QUANTIZE_ROWS * chunk
        quantize_rows(x, x_pitch, cols, first, min(first + QUANTIZE_ROWS, n), q8)
        chunk = finish_and_claim(desk, phase)
    wait(desk, phase, chunks)


@kernel()
def norm_rows(x: int, cols: int, weight: int, eps: float, first: int, last: int, y: int, q8: int) -> None:
    """rms_norm of rows first .. last - 1 of x to y, and their int8 form to q8 unless that is 0."""
    for r in range(first, last):
        rms_row(floats(x + 4 * cols * r, cols), floats(weight, cols), eps, floats(y + 4 * cols * r, cols))
        if q8 != 0:
            quantize_row(y + 4 * cols * r, cols, q8 + 2 * cols * r)


@kernel()
def norm_phase(desk: int, phase: int, x: int, cols: int, weight: int, eps: float, n: int, y: int, q8: int) -> None:
    """`norm_rows` of all n rows, shared among the workers."""
    chunks = -(-n // QUANTIZE_ROWS)
    chunk = claim(desk, phase)
    while chunk < chunks:
        first = QUANTIZE_ROWS * chunk
        norm_rows(x, cols, weight, eps, first, min(first + QUANTIZE_ROWS, n), y, q8)
        chunk = finish_and_claim(desk, phase)
    wait(desk, phase, chunks)
