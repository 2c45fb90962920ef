"""Float products: weights of a tile become float32 [columns, 16 rows] and meet float32 activations.

Used for float32 activations and for weight types that are floats. Lane = weight row, two vectors of 8 rows. Every
element of y is one chain of fused multiply-adds in ascending column order, whatever the number of activation rows; six
rows at a time keep twelve such chains of vectors in registers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.linear_types import HALVES, MINIMUM, PANEL_A, PANEL_B, PANEL_BLOCK, WIDE
from polykv.fast.cpu.simd import load_f, splat_i, store_f
from polykv.fast.cpu.simd_core import F32, F32X8, I64, Addr, Floats, op, read, spread, types, write
from polykv.fast.cpu.simd_math import fma, mul_f, multiply_add, signed_byte, sub_i, to_f
from polykv.fast.cpu.simd_weights import biased4, load4

# Columns of a float panel, and bytes of one of them (two vectors).
COLUMNS, COLUMN_BYTES = 256, 64


@kernel()
def panel_f32(flags: int, zero: int, src: int, blocks: int, panel: int) -> None:
    """Codes and scales of 8 rows (`linear_unpack`) to float32, one vector per column, COLUMN_BYTES apart."""
    for _ in range(blocks):
        for half in range(2):
            skip = 32 * half if flags & HALVES else 0
            a, q = load_f(src + PANEL_A + skip), load4(src + 128 * half)
            if flags & WIDE:
                # The bias is its own inverse: what remains are signed codes.
                q, offset = biased4(q), splat_i(0)
            else:
                offset = splat_i(zero)
            for i in range(4):
                for k in range(4):
                    v = to_f(sub_i(signed_byte(q[i], k), offset))
                    if flags & MINIMUM:
                        v = fma(a, v, load_f(src + PANEL_B + skip))
                    else:
                        v = mul_f(a, v)
                    store_f(panel, v)
                    panel += COLUMN_BYTES
        src += PANEL_BLOCK


def _outer(rows: int) -> tuple[Any, Any, Any]:
    """Operations on the sums of `rows` rows and 16 weight rows: add one column, load, store."""
    sums = types.UniTuple(Floats, 2 * rows)

    def add(b: Any, w: Any, x: Any, pitch: Any, acc: Any) -> Any:
        halves = [read(b, b.add(w, I64(32 * h)), F32X8) for h in (0, 1)]
        values = [spread(b, read(b, b.add(x, b.mul(pitch, I64(r))), F32)) for r in range(rows)]
        return [multiply_add(b, halves[i % 2], values[i // 2], acc[i]) for i in range(2 * rows)]

    def load(b: Any, p: Any) -> Any:
        return [read(b, b.add(p, I64(32 * i)), F32X8) for i in range(2 * rows)]

    def store(b: Any, p: Any, acc: Any) -> None:
        for i, v in enumerate(acc):
            write(b, b.add(p, ir.Constant(I64, 32 * i)), v)

    return (
        op(sums, Addr, Addr, types.int64, sums)(add),
        op(sums, Addr)(load),
        op(types.void, Addr, sums)(store),
    )


add1, load1, store1 = _outer(1)
add2, load2, store2 = _outer(2)
add6, load6, store6 = _outer(6)


@kernel()
def tile_f32(panel: int, columns: int, x: int, pitch: int, n: int, sums: int) -> None:
    """Add the products of a float panel with n rows at x (`pitch` bytes apart) to sums float32 [n, 16]."""
    while n >= 6:
        acc6 = load6(sums)
        for k in range(columns):
            acc6 = add6(panel + COLUMN_BYTES * k, x + 4 * k, pitch, acc6)
        store6(sums, acc6)
        n, x, sums = n - 6, x + 6 * pitch, sums + 6 * COLUMN_BYTES
    while n >= 2:
        acc2 = load2(sums)
        for k in range(columns):
            acc2 = add2(panel + COLUMN_BYTES * k, x + 4 * k, pitch, acc2)
        store2(sums, acc2)
        n, x, sums = n - 2, x + 2 * pitch, sums + 2 * COLUMN_BYTES
    if n == 1:
        acc1 = load1(sums)
        for k in range(columns):
            acc1 = add1(panel + COLUMN_BYTES * k, x + 4 * k, pitch, acc1)
        store1(sums, acc1)
