"""Values of scalar types as pairs of integers: lane = dim, its lower half a token's int16, its upper half another's.

From quads of 8 tokens (`lift_quads`), in which Q8_0 is stored, four dims of a token to a lane.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.lift_simd import transposed
from polykv.fast.cpu.simd_core import I8X32, I16, I32X8, I64, Addr, op, read, types, write
from polykv.fast.cpu.simd_wide import I32X16, halves, lanes


def _pairs(vectors: int) -> Any:
    @op(types.void, Addr, types.int64, types.int64, Addr)
    def build(b: Any, codes: Any, offset: Any, step: Any, out: Any) -> None:
        """16 dims (or 32) of 8 tokens and of 8 others: int64 per eight, from where quads lie `step` bytes apart at
        `offset`; to 8 rows of one vector (or two) at `out`."""
        tokens = []
        for eight in (0, 8):
            p = b.add(read(b, b.add(codes, I64(eight)), I64), offset)
            tokens.append(transposed(b, [read(b, b.add(p, b.mul(step, I64(i))), I32X8) for i in range(8)]))
        for t in range(8):
            x, y = (b.bitcast(eight[t], I8X32) for eight in tokens)
            both = lanes(b, x, y, [i // 2 + 32 * (i % 2) for i in range(64)])
            for v, part in enumerate(halves(b, both)[:vectors]):
                words = b.sext(part, ir.VectorType(I16, 32))
                write(b, b.add(out, I64(64 * (vectors * t + v))), b.bitcast(words, I32X16))

    return build


_pairs16, _pairs32 = _pairs(1), _pairs(2)


@kernel()
def lift_pairs(codes: int, offset: int, step: int, couples: Any, dims: int, panel: int) -> None:
    """16 or 32 dims of the tokens of couples[0] .. couples[1] - 1 to their places in a panel of pairs.

    codes: address of int64 per piece, from where its quads lie `step` bytes apart at `offset`.
    """
    for i in range(couples[0], couples[1]):
        if dims == 32:
            _pairs32(codes + 16 * i, offset, step, panel + 1024 * i)
        else:
            _pairs16(codes + 16 * i, offset, step, panel + 512 * i)
