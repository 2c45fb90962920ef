"""h += post_norm(Wdown glu(Wgate m, Wup m)), m = rms_norm(h): one job of the team (twin of `polykv.ref.composites`).

    phase 0   rms_norm of the rows, and their int8 form (few rows: every worker for itself)
    phase 1   for a group of features: gate, up, glu, and the int8 form of the result, while they are in the cache
    phase 2   down, for a group of outputs; without post norm also the sum with h
    phase 3   post norm and sum, row by row

Every step is the row function that the operation of that name uses: the result equals their composition bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats
from polykv.fast.cpu.entry import entry
from polykv.fast.cpu.glu import glu_row
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.linear_ahead import wait_asking
from polykv.fast.cpu.linear_code import code
from polykv.fast.cpu.linear_product import SCRATCH, product
from polykv.fast.cpu.linear_team import (
    NEAR,
    add_row,
    beginning,
    copies,
    copy_of,
    norm_phase,
    product_phase,
    row_chunk,
    weight_chunk,
)
from polykv.fast.cpu.linear_types import packed_bytes, slot, takes_q8
from polykv.fast.cpu.norm import rms_row
from polykv.fast.cpu.q8 import quantize_row
from polykv.fast.cpu.simd import get_f64
from polykv.fast.cpu.team import TEAM, claim, finish, wait
from polykv.types import F32, Activations, Glu, MlpWeights

# Gate and up values of a chunk; a row of them begins after MARGIN values, where a product may repeat others.
VALUES, MARGIN = 1 << 14, 8
HALF = 4 * (VALUES + 128 * MARGIN)
PER_WORKER = SCRATCH + 2 * HALF
# The integers that kernels read of the weights; four of them, from DOWN on, are a matrix (`linear_team`).
GATE, GATE_AT, UP, UP_AT, DOWN, DOWN_AT, WIDTH, HIDDEN, NORM, POST, GELU = range(11)


@kernel()
def _hidden(
    desk: int, phase: int, workers: int, t: int, x: int, x8: int, n: int, act: int, after: int, scratch: int
) -> None:
    """act = glu(Wgate x, Wup x), as int8 rows or float32 rows, whichever the down matrix reads."""
    width, hidden = slot(t, WIDTH), slot(t, HIDDEN)
    integers, gelu = takes_q8(slot(t, DOWN)), slot(t, GELU) != 0
    step = row_chunk(width, n)
    # Groups are multiples of 32 features, so that a group's int8 blocks are its own.
    group = min(-(-weight_chunk(hidden, 2 * width, n, workers) // 32) * 32, VALUES // step // 32 * 32)
    groups, chunks = -(-hidden // group), -(-hidden // group) * -(-n // step)
    pitch, gate, up = 4 * (group + MARGIN), scratch + SCRATCH + 4 * MARGIN, scratch + SCRATCH + HALF + 4 * MARGIN
    asked = 0
    gate_row, up_row = packed_bytes(slot(t, GATE), width), packed_bytes(slot(t, UP), width)
    chunk, done = claim(desk, phase), 0
    while chunk < chunks:
        r, first = chunk // groups * step, chunk % groups * group
        m, last = min(step, n - r), min(first + group, hidden)
        # See `product_phase`.
        upcoming = chunk + workers
        later = slot(t, GATE_AT) + upcoming % groups * group * gate_row if upcoming < chunks else after
        for part in range(2):
            code, w, to = slot(t, GATE + 2 * part), slot(t, GATE_AT + 2 * part), up if part else gate
            x_pitch = 2 * width if takes_q8(code) else 4 * width
            at = (x8 if takes_q8(code) else x) + r * x_pitch
            then = later if part else slot(t, UP_AT) + first * up_row
            product(code, w, hidden, width, at, x_pitch, m, to - 4 * first, pitch, first, last, asked, then, scratch)
            asked = then
        count = last - first
        for k in range(m):
            g, u = floats(gate + k * pitch, count), floats(up + k * pitch, count)
            if integers:
                glu_row(g, u, gelu, g)
                quantize_row(gate + k * pitch, count, act + 2 * hidden * (r + k) + 2 * first)
            else:
                glu_row(g, u, gelu, floats(act + 4 * hidden * (r + k) + 4 * first, count))
        chunk, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait_asking(desk, phase, chunks, after, NEAR)


@kernel()
def _post(desk: int, phase: int, t: int, eps: float, n: int, y: int, h: int) -> None:
    """h += rms_norm(y)."""
    width = slot(t, WIDTH)
    r, done = claim(desk, phase), 0
    while r < n:
        at = 4 * width * r
        row = floats(y + at, width)
        rms_row(row, floats(slot(t, POST), width), eps, row)
        add_row(h + at, y + at, width)
        r, done = claim(desk, phase), done + 1
    finish(desk, phase, done)
    wait(desk, phase, n)


# The integers of a job; EPS is a float64.
TABLE, H, N, MEMORY, EPS = range(5)


@kernel()
def mlp_phases(job: int, desk: int, worker: int, workers: int) -> None:
    """All phases of a block; called by address."""
    t, h, n, memory, eps = slot(job, TABLE), slot(job, H), slot(job, N), slot(job, MEMORY), get_f64(job + 8 * EPS)
    width, scratch, y = slot(t, WIDTH), memory + worker * PER_WORKER, memory + workers * PER_WORKER
    act = y + 4 * width * n
    x = copy_of(act + 4 * slot(t, HIDDEN) * n, 6 * width * n, n, worker)
    x8 = x + 4 * width * n
    integers = takes_q8(slot(t, GATE)) or takes_q8(slot(t, UP))
    norm_phase(desk, 0, h, width, slot(t, NORM), eps, n, x, x8 if integers else 0)
    after = beginning(t + 8 * DOWN, 1, n, worker, workers)
    _hidden(desk, 1, workers, t, x, x8, n, act, after, scratch)
    product_phase(desk, 2, workers, t + 8 * DOWN, 1, act, act, n, y, h if slot(t, POST) == 0 else 0, after, 0, scratch)
    if slot(t, POST) != 0:
        _post(desk, 3, t, eps, n, y, h)


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """The table of weights, the job that names it, and both addresses that a call needs."""

    table: npt.NDArray[np.int64]
    job: npt.NDArray[np.int64]
    address: int
    body: int


# Of weights that are in use, per kind of activations: a memo, as in `attention_block`, gone with the weights. Jobs are
# written and run under the team's lock.
_PREPARED: WeakKeyDictionary[MlpWeights, dict[Activations, Prepared]] = WeakKeyDictionary()


def prepared(w: MlpWeights, activations: Activations) -> Prepared:
    """The weights as kernels take them; addresses stay valid as long as `w`."""
    found = _PREPARED.get(w)
    if found is None:
        found = _PREPARED[w] = {}
    if activations not in found:
        values = [v for m in (w.gate, w.up, w.down) for v in (code(m.type, activations), address(m.data))]
        post = 0 if w.post_norm is None else address(w.post_norm)
        values += [w.down.rows, w.down.cols, address(w.norm), post, w.glu == Glu.GELU_TANH]
        table = np.array(values, np.int64)
        job = np.array((address(table), 0, 0, 0, 0), np.int64)
        job.view(np.float64)[EPS] = w.eps
        found[activations] = Prepared(table, job, address(job), entry(mlp_phases, 4))
    return found[activations]


def memory_of(n: int, width: int, hidden: int, workers: int) -> int:
    """Bytes of working memory of a block of n rows."""
    return workers * PER_WORKER + n * 4 * (width + hidden) + copies(n, workers) * n * 6 * width


def mlp_block(h: F32, w: MlpWeights, *, activations: Activations) -> None:
    """Add the MLP branch to h [R, E] in place."""
    n, width = h.shape
    if h.dtype != np.float32 or not h.flags.c_contiguous or width != w.gate.cols:
        raise ValueError(f"h must be C-contiguous float32 [R, {w.gate.cols}], because it is changed in place")
    made, team = prepared(w, activations), TEAM
    with team.lock:
        made.job[H:EPS] = address(h), n, team.memory(memory_of(n, width, w.down.cols, team.workers))
        team.run(made.body, made.address)
