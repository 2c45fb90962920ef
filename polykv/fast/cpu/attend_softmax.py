"""Online softmax (arXiv 1805.02867) on rows of scores, and the merge of two partial results of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_exp import decay, decayed
from polykv.fast.cpu.simd import addr, load_f, put_f32, splat_f, store_f
from polykv.fast.cpu.simd_core import F32, I32, I64, Addr, cgutils, const, op, read, types, write
from polykv.fast.cpu.simd_math import div_f, fma, mul_f, sigmoid_f
from polykv.fast.cpu.simd_wide import F32X4, F32X16, fold_lanes, lanes, larger
from polykv.types import UNIT

NONE = np.float32(-np.inf)
ONE, TWO = np.float32(1.0), np.float32(2.0)
# Bytes of a row of scores.
ROW = 4 * UNIT
# Weights are below e^8 = 2981, so that sums over a chunk stay far from what float32 can hold.
SLACK = 8.0
I4 = ir.IntType(4)


@kernel()
def cap_row(s: int, cap: np.float32) -> None:
    """s = cap * tanh(s / cap) on UNIT scores at address s."""
    c = splat_f(cap)
    for i in range(0, ROW, 32):
        t = sigmoid_f(mul_f(splat_f(TWO), div_f(load_f(s + i), c)))
        store_f(s + i, mul_f(c, fma(splat_f(TWO), t, splat_f(-ONE))))


@kernel()
def hide_cells(s: int, lo: int, hi: int) -> None:
    """Scores at address s outside [lo, hi) become those of cells that are not seen."""
    for t in range(lo):
        put_f32(s + 4 * t, NONE)
    for t in range(hi, UNIT):
        put_f32(s + 4 * t, NONE)


def _fold_tile(rows: int) -> Any:
    """Scores of a unit become softmax weights relative to a row's base, for up to four rows side by side.

    A row alone would mostly wait: for its maximum, its factor, its sum. So that no row waits for its maximum, weights
    may exceed 1: a base is the first unit's maximum, and is replaced when a later one is larger by more than SLACK.
    """

    @op(types.void, Addr, Addr, Addr, Addr, Addr)
    def build(b: Any, s: Any, span: Any, m: Any, l: Any, factor: Any) -> None:
        """Rows of scores; int32 per row, its place in m and l (bases and sums so far, which become the new ones);
        float32 [4], the factors for what was summed under the old bases."""
        spots = [b.mul(b.sext(read(b, b.add(span, I64(4 * r)), I32), I64), I64(4)) for r in range(rows)]
        at = [[b.add(s, I64(ROW * r + i)) for i in range(0, ROW, 64)] for r in range(rows)]

        def of_rows(vectors: list[Any], join: Any) -> Any:
            return fold_lanes(b, vectors + vectors[-1:] * (4 - rows), join)

        def state(array: Any) -> Any:
            v = ir.Constant(F32X4, [0.0] * 4)
            for r, spot in enumerate(spots):
                v = b.insert_element(v, read(b, b.add(array, spot), F32), I32(r))
            return v

        tops = []
        for places in at:
            x = [read(b, p, F32X16) for p in places]
            tops.append(larger(b, larger(b, x[0], x[1]), larger(b, x[2], x[3])))
        before, top = state(m), of_rows(tops, larger)
        base, kept = cgutils.alloca_once_value(b, before), cgutils.alloca_once_value(b, const(F32X4, 1.0))
        # True for NaN, which so becomes the base of its row.
        outgrown = b.fcmp_unordered(">", top, b.fadd(before, const(F32X4, SLACK)))
        with b.if_then(b.icmp_unsigned("!=", b.bitcast(outgrown, I4), I4(0)), likely=False):
            b.store(b.select(outgrown, top, before), base)
            b.store(decayed(b, b.fsub(before, b.load(base))), kept)
        new, rest = b.load(base), b.load(kept)
        sums = []
        for r, places in enumerate(at):
            mine = lanes(b, new, new, [r] * 16)
            w = [decayed(b, b.fsub(read(b, p, F32X16), mine)) for p in places]
            for p, x in zip(places, w, strict=True):
                write(b, p, x)
            sums.append(b.fadd(b.fadd(w[0], w[1]), b.fadd(w[2], w[3])))
        total = b.fadd(b.fmul(state(l), rest), of_rows(sums, lambda b, x, y: b.fadd(x, y)))
        for r, spot in enumerate(spots):
            write(b, b.add(m, spot), b.extract_element(new, I32(r)))
            write(b, b.add(l, spot), b.extract_element(total, I32(r)))
        write(b, factor, rest)

    return build


fold_tile3, fold_tile4 = _fold_tile(3), _fold_tile(4)


@kernel()
def merge_row(m: np.float32, l: np.float32, acc: Any, m1: np.float32, l1: np.float32, acc1: Any) -> Any:
    """Add the partial result (m1, l1, acc1) of later keys to (m, l, acc); acc, acc1 float32 [n], n a multiple of 8.

    A result without keys has the sum 0. Where scores are NaN the sum is NaN, and stays so.
    """
    if m1 == NONE and l1 == 0:
        return m, l
    new = max(m, m1)
    f, f1 = decay(m - new), decay(m1 - new)
    p, p1 = addr(acc), addr(acc1)
    for i in range(0, 4 * acc.shape[0], 32):
        store_f(p + i, fma(load_f(p1 + i), splat_f(f1), mul_f(load_f(p + i), splat_f(f))))
    return new, l * f + l1 * f1
