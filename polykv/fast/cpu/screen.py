"""Greedy tokens from half of the output matrix (twin of `polykv.ref.screen`, which says why it is exact).

    scan     estimates of all rows from the upper plane; of every tile the largest bound is kept. The best tile of each
             chunk, by its estimates, is computed exactly: the largest of these logits is the limit.
    finish   tiles whose bound reaches the limit are computed exactly, by the kernel of the full product.

What is computed depends on the matrix and the row alone, not on workers. Several rows share the scan.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.head import head
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_ahead import AHEAD, ask
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_planes import LOWER, ROW, UPPER, few_planes, screen_tile
from polykv.fast.cpu.linear_team import copies, copy_of, norm_phase
from polykv.fast.cpu.linear_types import UPPER_ROW, pitch_at, slot
from polykv.fast.cpu.q8 import BLOCK
from polykv.fast.cpu.simd import get_f32, get_f64, get_i32, load_f, load_i8x8, put_f32, put_i32, splat_f, store_f, top_f
from polykv.fast.cpu.simd_math import fma, mul_f, to_f
from polykv.fast.cpu.team import TEAM, claim, finish, wait
from polykv.types import F32, Activations, Greedy, HeadWeights

# More rows take all logits: products of many rows are limited by arithmetic, of which a screen saves none.
MOST_ROWS = 2
# Chunks of the scan. Each has a tile computed exactly, which costs little and raises the limit.
CHUNKS = 64
# Products of reach and lengths below this are far from overflow, and so are all partial sums.
SAFE = 2.0**120
# What a worker keeps: sums of a tile; lanes of `_reach`; by row the best estimate, its tile, and the reach.
LANES, BEST, WHERE = ROW * MOST_ROWS, ROW * (MOST_ROWS + 1), ROW * (MOST_ROWS + 1) + 4 * MOST_ROWS
REACH, SCRATCH = WHERE + 4 * MOST_ROWS, -(-(WHERE + 8 * MOST_ROWS) // 64) * 64
LOWEST = np.float32(-np.inf)
# The integers of a job. CODE .. COLS are the matrix; EPS is a float64. FOUND: for every chunk and row 16 bytes,
LIMIT, VALUE, ID, COUNT = 0, 4, 8, 12
CODE, WEIGHTS, ROWS, COLS, NORM, H, N, INVERSE, BOUNDS, TOPS, FOUND, REACHES, MEMORY, EPS = range(14)


@kernel()
def _reach(x8: int, cols: int, inverse: int, lanes: int) -> Any:
    """At least the length of a row divided by S, as float32.

    In float64, where codes times scales are exact; what is added covers all rounding, that of denormals included.
    """
    total = 0.0
    for _ in range(cols // 32):
        d = np.float64(get_f32(x8 + 32))
        for k in range(0, 32, 8):
            store_f(lanes, mul_f(to_f(load_i8x8(x8 + k)), load_f(inverse + 4 * k)))
            for i in range(8):
                v = d * np.float64(get_f32(lanes + 4 * i))
                total += v * v
        x8, inverse = x8 + BLOCK, inverse + 128
    return np.float32(np.sqrt(total) * (1.0 + 2.0**-20) + 2.0**-60)


@kernel()
def _exact(job: int, t: int, x8: int, sums: int) -> None:
    """The logits of tile t for a row, 8 sums, as the full product computes them."""
    rows, cols = slot(job, ROWS), slot(job, COLS)
    w = slot(job, WEIGHTS) + cols // 4 * UPPER_ROW * t
    few_planes(w, pitch_at(slot(job, CODE), rows, cols, 8 * t), cols // 32, x8, 0, 1, sums, 0, 0)


@kernel()
def _ask_tile(job: int, t: int) -> None:
    """Ask for both parts of a tile."""
    rows, cols = slot(job, ROWS), slot(job, COLS)
    w = slot(job, WEIGHTS) + cols // 4 * UPPER_ROW * t
    ask(w, cols // 32 * UPPER)
    ask(w + pitch_at(slot(job, CODE), rows, cols, 8 * t), cols // 32 * LOWER)


@kernel()
def _scan(job: int, first: int, last: int, chunk: int, x8: int, scratch: int) -> None:
    """Bounds of tiles first .. last - 1, and of every row the largest exact logit in the tile that looks best."""
    cols, n, tiles = slot(job, COLS), slot(job, N), slot(job, ROWS) // 8
    blocks, size, w = cols // 32, cols // 4 * UPPER_ROW, slot(job, WEIGHTS)
    best, where, reach = scratch + BEST, scratch + WHERE, scratch + REACH
    for r in range(n):
        put_f32(best + 4 * r, LOWEST)
        put_i32(where + 4 * r, first)
    far = 1 + AHEAD // size
    ask(w + first * size, min(far, last - first) * size)
    for t in range(first, last):
        screen_tile(w + t * size, blocks, x8, 2 * cols, n, scratch, w + (t + far) * size, UPPER)
        bound = load_f(slot(job, BOUNDS) + 32 * t)
        for r in range(n):
            e = load_f(scratch + ROW * r)
            top = top_f(e)
            if top > get_f32(best + 4 * r):
                put_f32(best + 4 * r, top)
                put_i32(where + 4 * r, t)
            top = top_f(fma(bound, splat_f(get_f32(reach + 4 * r)), e))
            put_f32(slot(job, TOPS) + 4 * (tiles * r + t), top)
    for r in range(n):
        _exact(job, get_i32(where + 4 * r), x8 + 2 * cols * r, scratch)
        put_f32(slot(job, FOUND) + 16 * (n * chunk + r) + LIMIT, top_f(load_f(scratch)))


@kernel()
def _finish(job: int, first: int, last: int, chunks: int, chunk: int, r: int, x8: int, sums: int) -> None:
    """The largest logit of row r, and its id, in those of tiles first .. last - 1 that may hold it."""
    n, tiles = slot(job, N), slot(job, ROWS) // 8
    limit, value, at, count, held = LOWEST, LOWEST, np.int64(0), 0, np.int64(-1)
    for c in range(chunks):
        limit = max(limit, get_f32(slot(job, FOUND) + 16 * (n * c + r) + LIMIT))
    tops = floats(slot(job, TOPS) + 4 * tiles * r, tiles)
    for t in range(first, last + 1):
        if t < last and tops[t] < limit:
            continue
        # One tile is computed while the next is on its way.
        if t < last:
            _ask_tile(job, t)
        if held >= 0:
            _exact(job, held, x8, sums)
            count += 8
            for i in range(8):
                if get_f32(sums + 4 * i) > value:
                    value, at = get_f32(sums + 4 * i), 8 * held + i
        held = np.int64(t)
    to = slot(job, FOUND) + 16 * (n * chunk + r)
    put_f32(to + VALUE, value)
    put_i32(to + ID, at)
    put_i32(to + COUNT, count)


@kernel()
def _chunk_tiles(rows: int) -> Any:
    return -(-(rows // 8) // CHUNKS)


@kernel()
def _body(job: int, desk: int, worker: int, workers: int) -> None:
    tiles, cols, n = slot(job, ROWS) // 8, slot(job, COLS), slot(job, N)
    scratch = slot(job, MEMORY) + worker * SCRATCH
    x = copy_of(slot(job, MEMORY) + workers * SCRATCH, 6 * cols * n, n, worker)
    x8 = x + 4 * cols * n
    norm_phase(desk, 0, slot(job, H), cols, slot(job, NORM), get_f64(job + 8 * EPS), n, x, x8)
    for r in range(n):
        reach = _reach(x8 + 2 * cols * r, cols, slot(job, INVERSE), scratch + LANES)
        put_f32(scratch + REACH + 4 * r, reach)
        put_f32(slot(job, REACHES) + 4 * r, reach)
    size = _chunk_tiles(slot(job, ROWS))
    chunks = -(-tiles // size)
    chunk, done = claim(desk, 1), 0
    while chunk < chunks:
        _scan(job, chunk * size, min(chunk * size + size, tiles), chunk, x8, scratch)
        chunk, done = claim(desk, 1), done + 1
    finish(desk, 1, done)
    wait(desk, 1, chunks)
    chunk, done = claim(desk, 2), 0
    while chunk < chunks:
        for r in range(n):
            first, last = chunk * size, min(chunk * size + size, tiles)
            _finish(job, first, last, chunks, chunk, r, x8 + 2 * cols * r, scratch)
        chunk, done = claim(desk, 2), done + 1
    finish(desk, 2, done)
    wait(desk, 2, chunks)


def greedy(h: F32, w: HeadWeights, *, activations: Activations, room: F32 | None = None) -> Greedy:
    """The most likely token of every row h [R, E], and its logit.

    room float32 [R, V]: memory for logits, where all of them are computed; what it holds afterwards means nothing.
    """
    if w.screen is None or activations != Activations.Q8 or not 0 < len(h) <= MOST_ROWS:
        return _of_all(h, w, activations, room)
    return _screened(h, w, w.screen.inverse, w.screen.bounds) or _of_all(h, w, activations, room)


def _screened(h: F32, w: HeadWeights, inverse: F32, bounds: F32) -> Greedy | None:
    """None: a logit may not be finite."""
    n, cols = h.shape
    if cols != w.out.cols:
        raise ValueError(f"h has {cols} columns, the output matrix has {w.out.cols}")
    assert w.screen is not None
    h = np.ascontiguousarray(h, np.float32)
    rows, tiles = w.out.rows, w.out.rows // 8
    found = np.empty((-(-tiles // -(-tiles // CHUNKS)), n, 4), np.float32)
    reach = np.empty(n, np.float32)
    team = TEAM
    with team.lock:
        lent = team.workers * SCRATCH + copies(n, team.workers) * 6 * cols * n
        memory = team.memory(lent + 4 * n * tiles)
        matrix = (code(w.out.type, Activations.Q8), address(w.out.data), rows, cols)
        given = (address(w.norm), address(h), n, address(inverse), address(bounds))
        results = (memory + lent, address(found), address(reach))
        job = np.array((*matrix, *given, *results, memory, 0), np.int64)
        job.view(np.float64)[EPS] = w.eps
        team.run(entry(_body, 4), address(job))
    # NaN and infinity compare false.
    if not (reach * np.float64(w.screen.largest) < SAFE).all():
        return None
    best = found[:, :, VALUE // 4].argmax(axis=0)
    each, whole = np.arange(n), found.view(np.int32)
    return Greedy(whole[best, each, ID // 4], found[best, each, VALUE // 4], whole[:, :, COUNT // 4].sum(0, np.int32))


def _of_all(h: F32, w: HeadWeights, activations: Activations, room: F32 | None) -> Greedy:
    """From all logits."""
    y = head(h, w, activations=activations, out=room)
    ids = y.argmax(axis=1)
    logits = y[np.arange(len(y)), ids]
    # A sum passes NaN and infinity on; finite values may overflow it, so only then is every one looked at.
    with np.errstate(over="ignore", invalid="ignore"):
        sound = np.isfinite(y.sum())
    if not sound:
        logits = np.where(np.isfinite(y).all(axis=1), logits, np.float32(np.nan))
    return Greedy(ids.astype(np.int32), logits, np.full(len(y), w.out.rows, np.int32))
