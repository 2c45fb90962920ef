"""Logits = softcap(W norm(h)): one parallel region (twin of `polykv.ref.composites`)."""

from __future__ import annotations

import numpy as np
from numba import prange

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_product import SCRATCH
from polykv.fast.cpu.linear_team import ALONE, norm_phase, norm_rows, product_phase, row_at
from polykv.fast.cpu.linear_types import takes_q8
from polykv.fast.cpu.team import claim, enter, finish_and_claim
from polykv.types import F32, Activations, HeadWeights

# Logits that a worker caps at a time.
CHUNK = 1 << 14


@kernel()
def _softcap(desk: int, phase: int, y: int, n: int, cap: float) -> None:
    """y = cap tanh(y / cap) of n values."""
    chunk = claim(desk, phase)
    while chunk * CHUNK < n:
        part = row_at(y + 4 * CHUNK * chunk, min(CHUNK, n - CHUNK * chunk))
        for i in range(part.shape[0]):
            part[i] = cap * np.tanh(part[i] / cap)
        chunk = finish_and_claim(desk, phase)


@kernel()
def _work(
    worker: int,
    workers: int,
    desk: int,
    memory: int,
    code: int,
    w: int,
    rows: int,
    cols: int,
    norm: int,
    eps: float,
    cap: float,
    h: int,
    n: int,
    y: int,
    x8: int,
) -> None:
    x = memory + workers * SCRATCH
    if 4 * cols * n > ALONE:
        norm_phase(desk, 0, h, cols, norm, eps, n, x, x8)
    at, pitch = (x8, 2 * cols) if x8 != 0 else (x, 4 * cols)
    product_phase(desk, 1, workers, code, w, rows, cols, at, pitch, n, y, 4 * rows, memory + worker * SCRATCH)
    if cap > 0:
        _softcap(desk, 2, y, rows * n, cap)


@kernel(parallel=True)
def _region(
    workers: int,
    desk: int,
    memory: int,
    code: int,
    w: int,
    rows: int,
    cols: int,
    norm: int,
    eps: float,
    cap: float,
    h: int,
    n: int,
    y: int,
) -> None:
    x = memory + workers * SCRATCH
    x8 = x + 4 * cols * n if takes_q8(code) else 0
    if 4 * cols * n <= ALONE:
        norm_rows(h, cols, norm, eps, 0, n, x, x8)
    for worker in prange(workers):
        _work(worker, workers, desk, memory, code, w, rows, cols, norm, eps, cap, h, n, y, x8)


def head(h: F32, w: HeadWeights, *, activations: Activations, out: F32 | None = None) -> F32:
    """Logits [R, V] = softcap(W norm(h)), softcap(l) = c tanh(l / c)."""
    n, cols = h.shape
    h = np.ascontiguousarray(h)
    y = np.empty((n, w.out.rows), np.float32) if out is None else out
    direct = y if y.flags.c_contiguous else np.empty(y.shape, np.float32)
    with enter() as team:
        memory = team.memory(team.workers * SCRATCH + 6 * cols * n)
        weights = (code(w.out.type, activations), address(w.out.data), w.out.rows, cols, address(w.norm))
        numbers = (w.eps, np.float32(w.softcap))
        _region(team.workers, team.desk, memory, *weights, *numbers, address(h), n, address(direct))
    if direct is not y:
        y[...] = direct
    return y
