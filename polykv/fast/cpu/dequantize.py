"""Packed rows as float32 (twin of `polykv.ref.weights`): whole matrices, or the rows of some tokens.

A row is unpacked by the kernels that unpack tiles of 8 rows, as a tile that holds it 8 times: looking up embeddings is
too small a part of a step to deserve code of its own, and no other row is touched. (In two planes, `linear_planes`, it
is the tile that the row is in.)
"""

from __future__ import annotations

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_float import COLUMN_BYTES, COLUMNS
from polykv.fast.cpu.linear_product import FLOATS, SCRATCH, expand
from polykv.fast.cpu.linear_types import FLAGS, PLANES, forward, pitch_at, row_bytes, slot
from polykv.fast.cpu.simd import get_f32, get_f64, get_i32, put_f32
from polykv.fast.cpu.team import TEAM, claim, finish, wait
from polykv.results import result
from polykv.types import F32, I32, Activations, QuantTensor

# Values of a chunk.
CHUNK = 1 << 14


@kernel()
def _rows(job: int, first: int, last: int, scale: float, scratch: int) -> None:
    code, cols, rows, floats = slot(job, CODE), slot(job, COLS), slot(job, ROWS), scratch + FLOATS
    planes = slot(code, FLAGS) & PLANES != 0
    for i in range(first, last):
        row = np.int64(get_i32(slot(job, IDS) + 4 * i))
        # In planes 8 rows are interleaved, so the tile is the one that the row is in.
        lane = row % 8 if planes else 0
        w, y = slot(job, WEIGHTS) + (row - lane) * row_bytes(code, cols), slot(job, OUT) + 4 * cols * i
        pitch = pitch_at(code, rows, cols, row - lane) if planes else 0
        for column in range(0, cols, COLUMNS):
            count = min(COLUMNS, cols - column)
            step, less = forward(code, column)
            expand(code, w + step, pitch - less, count, scratch, floats)
            for k in range(count):
                put_f32(y + 4 * (column + k), get_f32(floats + COLUMN_BYTES * k + 4 * lane) * scale)


# The integers of a job; SCALE is a float64.
CODE, WEIGHTS, ROWS, COLS, IDS, N, OUT, MEMORY, SCALE = range(9)


@kernel()
def _body(job: int, desk: int, worker: int, workers: int) -> None:
    cols, n = slot(job, COLS), slot(job, N)
    step, scale = max(1, CHUNK // cols), np.float32(get_f64(job + 8 * SCALE))
    scratch = slot(job, MEMORY) + worker * SCRATCH
    chunk, done = claim(desk, 0), 0
    while chunk * step < n:
        last = min(chunk * step + step, n)
        _rows(job, chunk * step, last, scale, scratch)
        chunk, done = claim(desk, 0), done + 1
    finish(desk, 0, done)
    wait(desk, 0, -(-n // step))


def scaled_rows(w: QuantTensor, rows: I32, scale: float, out: F32 | None) -> F32:
    """scale * W[rows], [n, cols]. Raises IndexError for rows that W does not have."""
    ids = np.ascontiguousarray(rows, np.int32)
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < w.rows:
        raise IndexError(f"rows must be 0 to {w.rows - 1}, got {int(ids.min())} to {int(ids.max())}")
    n = int(ids.shape[0])
    y = result(out, (n, w.cols))
    direct = y if y.flags.c_contiguous and y.dtype == np.float32 else np.empty(y.shape, np.float32)
    team = TEAM
    with team.lock:
        memory = team.memory(team.workers * SCRATCH)
        table = code(w.type, Activations.F32)
        matrix = (table, address(w.data), w.rows, w.cols)
        job = np.array((*matrix, address(ids), n, address(direct), memory, 0), np.int64)
        job.view(np.float64)[SCALE] = scale
        team.run(entry(_body, 4), address(job))
    if direct is not y:
        y[...] = direct
    return y


def dequantize(w: QuantTensor, rows: I32 | None = None, *, out: F32 | None = None) -> F32:
    """The given rows of W (all when None) as float32 [n, cols]."""
    return scaled_rows(w, np.arange(w.rows, dtype=np.int32) if rows is None else rows, 1.0, out)
