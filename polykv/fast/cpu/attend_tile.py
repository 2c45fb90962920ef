"""Register tiles of attention: R rows times V vectors of columns, sums in registers; here the product of floats.

Every element of a tile is one chain in ascending order: floats by fused multiply-adds, integers exactly in int32
(`attend_tile_k`, `attend_tile_v`). So an element does not depend on the shape of the tile that it is computed in, nor
on the rows beside it. R and V are such that sums and operands stay in registers and that there are chains enough to
hide the latency of an instruction.

Rows are given by the address of R int64 addresses, columns by a panel of floats 16 wide (`lift`): row k of vector v is
at panel + 64 k + (v // 2) * gap + 32 * (v % 2), where `gap` leads from a panel to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I64,
    Addr,
    cgutils,
    const,
    op,
    read,
    spread,
    types,
    write,
)
from polykv.fast.cpu.simd_math import multiply_add

Int = types.int64


class Sums:
    """R x V sums while they are in registers."""

    def __init__(self, b: Any, rows: int, vectors: int, kind: ir.VectorType) -> None:
        self.spots = [(r, v) for r in range(rows) for v in range(vectors)]
        self.vectors = vectors
        self._cells = [cgutils.alloca_once(b, kind) for _ in self.spots]

    def __getitem__(self, spot: tuple[int, int]) -> Any:
        return self._cells[spot[0] * self.vectors + spot[1]]

    def update(self, b: Any, term: Callable[[Any, int, int], Any]) -> None:
        """sum [r, v] = term(sum, r, v)."""
        for r, v in self.spots:
            b.store(term(b.load(self[r, v]), r, v), self[r, v])


def plus(b: Any, p: Any, n: int) -> Any:
    """Emit p + n."""
    return b.add(p, I64(n))


def starts(b: Any, rows: Any, offset: Any, count: int) -> list[Any]:
    """Emit the addresses at `offset` of the rows."""
    return [b.add(read(b, plus(b, rows, 8 * r), I64), offset) for r in range(count)]


def scalars(b: Any, rows: list[Any], offset: Any, kind: ir.Type, count: int = 8) -> list[Any]:
    """Emit one value of each row, in all lanes."""
    return [spread(b, read(b, b.add(p, offset), kind), count) for p in rows]


def floats_product(rows: int, vectors: int, fresh: bool) -> Any:
    """C = A x panel of float32; with `fresh` false C = C * f + A x panel."""

    @op(types.void, Addr, Int, Addr, Int, Addr, Int, Addr)
    def build(b: Any, a: Any, n: Any, panel: Any, gap: Any, c: Any, offset: Any, f: Any) -> None:
        """Rows of A, their length, panel, gap, rows of C, offset of the columns in them, float32 factors of rows."""
        sums, given, out = Sums(b, rows, vectors, F32X8), starts(b, a, I64(0), rows), starts(b, c, offset, rows)
        if fresh:
            sums.update(b, lambda _, r, v: const(F32X8, 0.0))
        else:
            each = [spread(b, read(b, plus(b, f, 4 * r), F32)) for r in range(rows)]
            sums.update(b, lambda _, r, v: b.fmul(read(b, plus(b, out[r], 32 * v), F32X8), each[r]))
        with cgutils.for_range(b, n, intp=I64) as step:
            at = b.add(panel, b.mul(step.index, I64(64)))
            places = [plus(b, b.add(at, b.mul(gap, I64(v // 2))), 32 * (v % 2)) for v in range(vectors)]
            x = [read(b, p, F32X8) for p in places]
            u = scalars(b, given, b.mul(step.index, I64(4)), F32)
            sums.update(b, lambda c, r, v: multiply_add(b, u[r], x[v], c))
        for r, v in sums.spots:
            write(b, plus(b, out[r], 32 * v), b.load(sums[r, v]))

    return build


# Shapes in use: up to three rows (one token of a model with three query heads per kv head), and rows by fours.
scores3, scores4 = floats_product(3, 4, True), floats_product(4, 2, True)
outputs3, outputs4 = floats_product(3, 4, False), floats_product(4, 2, False)
