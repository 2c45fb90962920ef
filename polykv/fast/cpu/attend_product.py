"""The two products of attention on panels: C [4, 16] = C * f + A [4, n] x panel [n, 16].

Every element is one chain of fused multiply-adds in ascending order of n, so a row's result does not depend on the
rows it is computed with, nor on the shape of the tile. Eight or twelve chains at a time hide the latency of the
instruction: 4 rows of one panel, or up to 3 rows (one token of a model with 3 query heads per kv head) of two.
"""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.simd import addr, get_f32, load_f, splat_f, store_f
from polykv.fast.cpu.simd_math import fma, mul_f


@kernel()
def _start(c: int, f: float, fresh: bool) -> Any:
    return splat_f(f) if fresh else mul_f(load_f(c), splat_f(f))


@kernel()
def tile(a: Any, panel: int, n: int, c: Any, f: Any, fresh: bool) -> None:
    """Addresses a, c of four rows each; f: four factors of C. When `fresh`, C starts from f instead (pass zeros)."""
    c00, c01 = _start(c[0], f[0], fresh), _start(c[0] + 32, f[0], fresh)
    c10, c11 = _start(c[1], f[1], fresh), _start(c[1] + 32, f[1], fresh)
    c20, c21 = _start(c[2], f[2], fresh), _start(c[2] + 32, f[2], fresh)
    c30, c31 = _start(c[3], f[3], fresh), _start(c[3] + 32, f[3], fresh)
    for k in range(n):
        x, y = load_f(panel + 64 * k), load_f(panel + 64 * k + 32)
        v = splat_f(get_f32(a[0] + 4 * k))
        c00, c01 = fma(v, x, c00), fma(v, y, c01)
        v = splat_f(get_f32(a[1] + 4 * k))
        c10, c11 = fma(v, x, c10), fma(v, y, c11)
        v = splat_f(get_f32(a[2] + 4 * k))
        c20, c21 = fma(v, x, c20), fma(v, y, c21)
        v = splat_f(get_f32(a[3] + 4 * k))
        c30, c31 = fma(v, x, c30), fma(v, y, c31)
    store_f(c[0], c00)
    store_f(c[0] + 32, c01)
    store_f(c[1], c10)
    store_f(c[1] + 32, c11)
    store_f(c[2], c20)
    store_f(c[2] + 32, c21)
    store_f(c[3], c30)
    store_f(c[3] + 32, c31)


@kernel()
def tile3(a: Any, panel: int, second: int, n: int, c: Any, f: Any, fresh: bool) -> None:
    """The same for three rows and two panels; the columns of the second follow those of the first in C."""
    c00, c01 = _start(c[0], f[0], fresh), _start(c[0] + 32, f[0], fresh)
    c02, c03 = _start(c[0] + 64, f[0], fresh), _start(c[0] + 96, f[0], fresh)
    c10, c11 = _start(c[1], f[1], fresh), _start(c[1] + 32, f[1], fresh)
    c12, c13 = _start(c[1] + 64, f[1], fresh), _start(c[1] + 96, f[1], fresh)
    c20, c21 = _start(c[2], f[2], fresh), _start(c[2] + 32, f[2], fresh)
    c22, c23 = _start(c[2] + 64, f[2], fresh), _start(c[2] + 96, f[2], fresh)
    for k in range(n):
        u, v, w = splat_f(get_f32(a[0] + 4 * k)), splat_f(get_f32(a[1] + 4 * k)), splat_f(get_f32(a[2] + 4 * k))
        x, y = load_f(panel + 64 * k), load_f(panel + 64 * k + 32)
        c00, c01 = fma(u, x, c00), fma(u, y, c01)
        c10, c11 = fma(v, x, c10), fma(v, y, c11)
        c20, c21 = fma(w, x, c20), fma(w, y, c21)
        x, y = load_f(second + 64 * k), load_f(second + 64 * k + 32)
        c02, c03 = fma(u, x, c02), fma(u, y, c03)
        c12, c13 = fma(v, x, c12), fma(v, y, c13)
        c22, c23 = fma(w, x, c22), fma(w, y, c23)
    _finish(c[0], c00, c01, c02, c03)
    _finish(c[1], c10, c11, c12, c13)
    _finish(c[2], c20, c21, c22, c23)


@kernel()
def _finish(c: int, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    store_f(c, x0)
    store_f(c + 32, x1)
    store_f(c + 64, x2)
    store_f(c + 96, x3)


@kernel()
def scores(q: Any, rows: Any, n_rows: int, dims: int, panel: int, s: Any, column: int) -> None:
    """s[i, column : column + 16] = q[rows[i], :dims] x panel, for i < n_rows (a multiple of 4)."""
    pq, ps = addr(q), addr(s) + 4 * column
    step, s_step = 4 * q.shape[1], 4 * s.shape[1]
    zero = q.dtype.type(0)
    for i in range(0, n_rows, 4):
        a = (pq + rows[i] * step, pq + rows[i + 1] * step, pq + rows[i + 2] * step, pq + rows[i + 3] * step)
        c = (ps + i * s_step, ps + (i + 1) * s_step, ps + (i + 2) * s_step, ps + (i + 3) * s_step)
        tile(a, panel, dims, c, (zero, zero, zero, zero), True)


@kernel()
def scores3(q: Any, rows: Any, dims: int, panel: int, second: int, s: Any, column: int) -> None:
    """s[i, column : column + 32] for i < 3, from two panels."""
    pq, ps = addr(q), addr(s) + 4 * column
    step, s_step = 4 * q.shape[1], 4 * s.shape[1]
    zero = q.dtype.type(0)
    a = (pq + rows[0] * step, pq + rows[1] * step, pq + rows[2] * step)
    tile3(a, panel, second, dims, (ps, ps + s_step, ps + 2 * s_step), (zero, zero, zero), True)


@kernel()
def outputs3(p: Any, skip: int, n: int, rows: Any, panel: int, second: int, factor: Any, acc: Any, column: int) -> None:
    """acc[rows[i], column : column + 32] for i < 3, from two panels."""
    pp, pa = addr(p) + 4 * skip, addr(acc) + 4 * column
    step, a_step = 4 * p.shape[1], 4 * acc.shape[1]
    c = (pa + rows[0] * a_step, pa + rows[1] * a_step, pa + rows[2] * a_step)
    tile3((pp, pp + step, pp + 2 * step), panel, second, n - skip, c, (factor[0], factor[1], factor[2]), False)


@kernel()
def outputs(p: Any, skip: int, n: int, rows: Any, n_rows: int, panel: int, factor: Any, acc: Any, column: int) -> None:
    """acc[rows[i], column : column + 16] = itself * factor[i] + p[i, skip:n] x panel, for i < n_rows (in fours)."""
    pp, pa = addr(p) + 4 * skip, addr(acc) + 4 * column
    step, a_step = 4 * p.shape[1], 4 * acc.shape[1]
    for i in range(0, n_rows, 4):
        a = (pp + i * step, pp + (i + 1) * step, pp + (i + 2) * step, pp + (i + 3) * step)
        c = (pa + rows[i] * a_step, pa + rows[i + 1] * a_step, pa + rows[i + 2] * a_step, pa + rows[i + 3] * a_step)
        tile(a, panel, n - skip, c, (factor[i], factor[i + 1], factor[i + 2], factor[i + 3]), False)
