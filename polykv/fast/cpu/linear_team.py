"""Phases of a job of the team (`team`): norm and int8 form of rows, products with packed weights."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats
from polykv.fast.cpu.linear_ahead import wait_asking
from polykv.fast.cpu.linear_product import ROWS, product
from polykv.fast.cpu.linear_types import row_bytes, slot, takes_q8
from polykv.fast.cpu.norm import rms_row
from polykv.fast.cpu.q8 import quantize_row
from polykv.fast.cpu.simd import get_f32, load_f, put_f32, store_f
from polykv.fast.cpu.simd_math import add_f
from polykv.fast.cpu.team import claim, finish, wait

# Activation rows of a chunk take at most this much, so that they stay in the second-level cache; and weights of a chunk
# are at least so many that taking it from the counter does not matter.
ROW_BYTES, WEIGHTS = 1 << 18, 1 << 14
# Rows per chunk when workers share the quantization.
QUANTIZE_ROWS = 8
# Up to so many rows, every worker norms and quantizes all of them for itself: that takes less time than to wait, and
# than to fetch rows that another one made, line by line, where cores have no cache in common.
FEW = 8
# What a waiting worker asks for at most: it has to stay in the second-level cache.
NEAR = 1 << 17
# A matrix as phases take it: MAT integers, code (`linear_code`), address, rows, columns.
CODE, ADDRESS, HEIGHT, WIDTH, MAT = range(5)


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
def _group(mats: int, count: int, n: int, workers: int) -> Any:
    """Weight rows per chunk of `product_phase`."""
    rows = 0
    for i in range(count):
        rows += slot(mats, MAT * i + HEIGHT)
    return weight_chunk(rows, slot(mats, WIDTH), n, workers)


@kernel()
def _chunks(mat: int, group: int, steps: int) -> Any:
    return -(-slot(mat, HEIGHT) // group) * steps


@kernel()
def _rows_at(mat: int, row: int) -> Any:
    """Where the weights of a row begin."""
    return slot(mat, ADDRESS) + row * row_bytes(slot(mat, CODE), slot(mat, WIDTH))


@kernel()
def beginning(mats: int, count: int, n: int, worker: int, workers: int) -> Any:
    """Address of the weights that a worker will probably read first in a `product_phase`."""
    return _rows_at(mats, min(worker * _group(mats, count, n, workers), slot(mats, HEIGHT)))


@kernel()
def product_phase(
    desk: int,
    phase: int,
    workers: int,
    mats: int,
    count: int,
    x: int,
    x8: int,
    n: int,
    y: int,
    h: int,
    asked: int,
    after: int,
    scratch: int,
) -> None:
    """One phase of a job (see `team`): y_i [n, rows_i] = x W_i^T for `count` matrices, shared among the workers.

    mats: address of int64 [count, MAT], see there; the matrices have the same columns. x and x8 are the rows as float32
    and as int8, whichever the types read. The results lie one after the other at y. That of a single matrix is also
    added to the rows at h, unless h is 0. after: the weights that this worker will probably read after the phase, or 0;
    asked: what that was in the phase before.
    """
    cols, step, group = slot(mats, WIDTH), row_chunk(slot(mats, WIDTH), n), _group(mats, count, n, workers)
    steps, chunks = -(-n // step), 0
    for i in range(count):
        chunks += _chunks(mats + 8 * MAT * i, group, steps)
    # The matrix of the chunk in hand, and its first chunk.
    mat, begin, size = mats, 0, _chunks(mats, group, steps)
    chunk, done = claim(desk, phase), 0
    while chunk < chunks:
        while chunk >= begin + size:
            begin, y, mat = begin + size, y + 4 * n * slot(mat, HEIGHT), mat + 8 * MAT
            size = _chunks(mat, group, steps)
        # Chunks take about equally long, so that each of the others will have taken one meanwhile.
        then, upcoming = after, chunk + workers
        if upcoming < begin + size:
            then = _rows_at(mat, (upcoming - begin) * group % slot(mat, HEIGHT))
        elif upcoming < chunks:
            then = _rows_at(mat + 8 * MAT, (upcoming - begin - size) * group)
        _chunk(chunk - begin, step, group, mat, cols, x, x8, n, y, h, asked, then, scratch)
        asked, done = then, done + 1
        chunk = claim(desk, phase)
    finish(desk, phase, done)
    wait_asking(desk, phase, chunks, after, NEAR if after != 0 else 0)


@kernel()
def _chunk(
    chunk: int,
    step: int,
    group: int,
    mat: int,
    cols: int,
    x: int,
    x8: int,
    n: int,
    y: int,
    h: int,
    asked: int,
    then: int,
    scratch: int,
) -> None:
    code, rows = slot(mat, CODE), slot(mat, HEIGHT)
    groups = -(-rows // group)
    r, first = chunk // groups * step, chunk % groups * group
    m, last = min(step, n - r), min(first + group, rows)
    at, pitch = (x8, 2 * cols) if takes_q8(code) else (x, 4 * cols)
    at, y, h_pitch = at + r * pitch, y + 4 * rows * r, 4 * rows
    product(code, slot(mat, ADDRESS), rows, cols, at, pitch, m, y, h_pitch, first, last, asked, then, scratch)
    if h != 0:
        for k in range(m):
            add_row(h + h_pitch * (r + k) + 4 * first, y + h_pitch * k + 4 * first, last - first)


@kernel()
def add_row(h: int, y: int, n: int) -> None:
    """h += y."""
    whole = n // 8 * 32
    for i in range(0, whole, 32):
        store_f(h + i, add_f(load_f(h + i), load_f(y + i)))
    for i in range(whole, 4 * n, 4):
        put_f32(h + i, get_f32(h + i) + get_f32(y + i))


@kernel()
def quantize_phase(desk: int, phase: int, x: int, x_pitch: int, cols: int, n: int, q8: int) -> None:
    """n rows of x to int8 rows at q8: one phase of a job, or, when they are few, a copy of the worker's own."""
    if n <= FEW:
        quantize_rows(x, x_pitch, cols, 0, n, q8)
        return
    chunks = -(-n // QUANTIZE_ROWS)
    chunk, done = claim(desk, phase), 0
    while chunk < chunks:
        first = QUANTIZE_ROWS * chunk
        quantize_rows(x, x_pitch, cols, first, min(first + QUANTIZE_ROWS, n), q8)
        chunk, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
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
    """`norm_rows` of all n rows: one phase of a job, or, when they are few, a copy of the worker's own.

    A worker that comes so late that the job has already changed x gets a useless copy, and finds nothing left to do
    with it: x may change only after a phase that reads the copies.
    """
    if n <= FEW:
        norm_rows(x, cols, weight, eps, 0, n, y, q8)
        return
    chunks = -(-n // QUANTIZE_ROWS)
    chunk, done = claim(desk, phase), 0
    while chunk < chunks:
        first = QUANTIZE_ROWS * chunk
        norm_rows(x, cols, weight, eps, first, min(first + QUANTIZE_ROWS, n), y, q8)
        chunk, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, chunks)


def copies(n: int, workers: int) -> int:
    """How many copies of n normed or quantized rows there are: one that all read, or one for each worker."""
    return workers if n <= FEW else 1


@kernel()
def copy_of(memory: int, size: int, n: int, worker: int) -> Any:
    """The worker's copy, of those of `size` bytes that begin at `memory`."""
    return memory + worker * size if n <= FEW else memory
