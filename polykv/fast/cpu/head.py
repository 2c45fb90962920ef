"""Logits = softcap(W norm(h)): one job of the team (twin of `polykv.ref.composites`)."""

from __future__ import annotations

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_product import SCRATCH
from polykv.fast.cpu.linear_team import copies, copy_of, norm_phase, product_phase
from polykv.fast.cpu.linear_types import slot, takes_q8
from polykv.fast.cpu.simd import get_f64
from polykv.fast.cpu.team import TEAM, claim, finish, wait
from polykv.results import result
from polykv.types import F32, Activations, HeadWeights

# Logits that a worker caps at a time.
CHUNK = 1 << 14


@kernel()
def _softcap(desk: int, phase: int, y: int, n: int, cap: float) -> None:
    """y = cap tanh(y / cap) of n values."""
    chunk, done = claim(desk, phase), 0
    while chunk * CHUNK < n:
        part = floats(y + 4 * CHUNK * chunk, min(CHUNK, n - CHUNK * chunk))
        for i in range(part.shape[0]):
            part[i] = cap * np.tanh(part[i] / cap)
        chunk, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, -(-n // CHUNK))


# The integers of a job; the first four are the matrix (`linear_team`), EPS and CAP are float64.
CODE, WEIGHTS, ROWS, COLS, NORM, H, N, Y, MEMORY, EPS, CAP = range(11)


@kernel()
def _body(job: int, desk: int, worker: int, workers: int) -> None:
    rows, cols, n, y = slot(job, ROWS), slot(job, COLS), slot(job, N), slot(job, Y)
    cap, scratch = np.float32(get_f64(job + 8 * CAP)), slot(job, MEMORY) + worker * SCRATCH
    x = copy_of(slot(job, MEMORY) + workers * SCRATCH, 6 * cols * n, n, worker)
    x8 = x + 4 * cols * n
    integers = takes_q8(slot(job, CODE))
    norm_phase(desk, 0, slot(job, H), cols, slot(job, NORM), get_f64(job + 8 * EPS), n, x, x8 if integers else 0)
    product_phase(desk, 1, workers, job, 1, x, x8, n, y, 0, 0, 0, scratch)
    if cap > 0:
        _softcap(desk, 2, y, rows * n, cap)


def head(h: F32, w: HeadWeights, *, activations: Activations, out: F32 | None = None) -> F32:
    """Logits [R, V] = softcap(W norm(h)), softcap(l) = c tanh(l / c)."""
    n, cols = h.shape
    if cols != w.out.cols:
        raise ValueError(f"h has {cols} columns, the output matrix has {w.out.cols}")
    h = np.ascontiguousarray(h, np.float32)
    y = result(out, (n, w.out.rows))
    direct = y if y.flags.c_contiguous and y.dtype == np.float32 else np.empty(y.shape, np.float32)
    team = TEAM
    with team.lock:
        memory = team.memory(team.workers * SCRATCH + copies(n, team.workers) * 6 * cols * n)
        weights = (code(w.out.type, activations), address(w.out.data), w.out.rows, cols, address(w.norm))
        job = np.array((*weights, address(h), n, address(direct), memory, 0, 0), np.int64)
        job.view(np.float64)[EPS:] = w.eps, w.softcap
        team.run(entry(_body, 4), address(job))
    if direct is not y:
        y[...] = direct
    return y
