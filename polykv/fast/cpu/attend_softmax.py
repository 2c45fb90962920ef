"""Online softmax (arXiv 1805.02867) on one row of scores, and the merge of two partial results of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_exp import decay, decay_f
from polykv.fast.cpu.simd import addr, load_f, splat_f, store_f, sum_f, top_f
from polykv.fast.cpu.simd_math import add_f, div_f, fma, max_f, mul_f, sigmoid_f, sub_f
from polykv.types import UNIT

NONE = np.float32(-np.inf)
ONE, TWO = np.float32(1.0), np.float32(2.0)


@kernel()
def cap_row(s: int, cap: np.float32) -> None:
    """s = cap * tanh(s / cap) on UNIT scores at address s."""
    c = splat_f(cap)
    for i in range(0, 4 * UNIT, 32):
        t = sigmoid_f(mul_f(splat_f(TWO), div_f(load_f(s + i), c)))
        store_f(s + i, mul_f(c, fma(splat_f(TWO), t, splat_f(-ONE))))


@kernel()
def fold_row(s: Any, i: int, lo: int, hi: int, cap: np.float32, m: np.float32, l: np.float32) -> Any:
    """Scores s[i, :UNIT] become softmax weights relative to the new maximum; those outside [lo, hi) become 0.

    m, l: maximum and sum so far. Returns the new ones and the factor for what was accumulated under the old maximum.
    """
    p = addr(s) + 4 * s.shape[1] * i
    if cap > 0:
        cap_row(p, cap)
    for t in range(lo):
        s[i, t] = NONE
    for t in range(hi, UNIT):
        s[i, t] = NONE
    top = load_f(p)
    for t in range(32, 4 * UNIT, 32):
        top = max_f(load_f(p + t), top)
    new = max(m, top_f(top))
    at = splat_f(new)
    total = splat_f(np.float32(0.0))
    for t in range(0, 4 * UNIT, 32):
        w = decay_f(sub_f(load_f(p + t), at))
        store_f(p + t, w)
        total = add_f(total, w)
    factor = decay(m - new)
    return new, l * factor + sum_f(total), factor


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
