"""Softmax weights in the form that the codes of values want: times the scales of their tokens, rounded to 16 bits.

Values that are codes are integers with a scale to a token and a group of dims (`lift`). So what a row gives to the
tokens of a unit is rounded likewise, 32 tokens to a scale,

    d = max(max|w scale| / 32767, sum|w scale| / limit),  w' = round(w scale / d)    per 32 tokens,

with such a limit (`kv_layout`) that the sum over 32 tokens of products with codes is exact in int32. So it does not
matter in which shape of tile, and in which order, it is added up. What rounding changes in an output is some 4e-5 of
its size, far less than the rounding of the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.kv_layout import PIECE
from polykv.fast.cpu.simd import get_i64
from polykv.fast.cpu.simd_core import F32X8, I16, I32, I32X8, I64, Addr, call, const, op, read, spread, types, write
from polykv.fast.cpu.simd_math import widen
from polykv.fast.cpu.simd_wide import F32X16, I32X16, fold_lanes, halves, joined, lanes, larger, low_words, multiply_add
from polykv.types import UNIT

# Tokens to a scale, the bytes of a row of weights (int16) and of a row of their scales (float32).
SPAN = 32
WEIGHT_ROW, STEP_ROW = 2 * UNIT, 4 * UNIT // SPAN
LARGEST = 32767
# Scales below this have no float32 inverse; such weights become zeros.
TINY = float(np.finfo(np.float32).tiny)


@op(types.void, Addr, Addr, Addr, types.float32, types.int64)
def _store_scales(b: Any, out: Any, p: Any, q: Any, worth: Any, count: Any) -> None:
    """float16 [8] at p and at q times `worth`, the first `count` of them; zeros after."""
    kind = ir.VectorType(I16, 8)
    both = joined(b, *[widen(b, b.zext(read(b, a, kind), I32X8)) for a in (p, q)])
    lane = ir.Constant(I32X16, list(range(16)))
    live = b.icmp_signed("<", lane, spread(b, b.trunc(count, I32), 16))
    write(b, out, b.select(live, b.fmul(both, spread(b, worth, 16)), const(F32X16, 0.0)))


@kernel(inlined=True)
def token_scales(out: int, records: int, first: int, at: int, skip: int, n: int, worth: Any) -> None:
    """float32 [UNIT] at `out`: the float16 at `at` of a record, of tokens 0..n-1, times what a code is worth; zeros
    after and, for whole 16 tokens, before skip.

    Whatever lies in cells that no row sees is not to matter, even when it is no number.
    """
    for t in range(0, UNIT, 2 * PIECE):
        p = get_i64(records + t) + at + 2 * get_i64(first + t)
        q = get_i64(records + t + 8) + at + 2 * get_i64(first + t + 8)
        _store_scales(out + 4 * t, p, q, worth, n - t if t + 2 * PIECE > skip else 0)


def _round_tile(rows: int) -> Any:
    """Weights of up to four rows times scales to int16, with their scales."""

    @op(types.void, Addr, Addr, types.float32, Addr, Addr)
    def build(b: Any, s: Any, scales: Any, share: Any, w: Any, steps: Any) -> None:
        """Rows of float32 weights, float32 [UNIT] of scales, 1 / limit; rows of int16: of every 16 tokens pairs of t
        and t + 8; float32 [4, 2], the scales of the rows' halves."""
        scale = [read(b, b.add(scales, I64(64 * i)), F32X16) for i in range(4)]
        x, tops, sums = [], [], []
        for r in range(rows):
            row = [b.fmul(read(b, b.add(s, I64(4 * UNIT * r + 64 * i)), F32X16), scale[i]) for i in range(4)]
            size = [call(b, "llvm.fabs.v16f32", F32X16, v) for v in row]
            x.append(row)
            tops += [larger(b, size[0], size[1]), larger(b, size[2], size[3])]
            sums += [b.fadd(size[0], size[1]), b.fadd(size[2], size[3])]
        top = fold_lanes(b, tops + tops[-2:] * (4 - rows), larger)
        total = fold_lanes(b, sums + sums[-2:] * (4 - rows), lambda b, x, y: b.fadd(x, y))
        # NaN where a weight is none: the sum is the second operand.
        d = larger(b, b.fmul(top, const(F32X8, 1 / LARGEST)), b.fmul(total, spread(b, share)))
        write(b, steps, d)
        useful = b.fcmp_ordered(">=", d, const(F32X8, TINY))
        inverse = b.select(useful, b.fdiv(const(F32X8, 1.0), d), const(F32X8, 0.0))
        # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
        magic = const(F32X16, 12582912.0)
        for r in range(rows):
            for half in range(2):
                factor = lanes(b, inverse, inverse, [2 * r + half] * 16)
                parts = [multiply_add(b, v, factor, magic) for v in x[r][2 * half : 2 * half + 2]]
                low, high = zip(*[halves(b, b.bitcast(v, I32X16)) for v in parts], strict=True)
                write(b, b.add(w, I64(WEIGHT_ROW * r + 64 * half)), low_words(b, joined(b, *low), joined(b, *high)))

    return build


round_tile3, round_tile4 = _round_tile(3), _round_tile(4)
