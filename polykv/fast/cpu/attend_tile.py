"""The products of attention on register tiles: R rows times V vectors of 8 columns, sums in registers.

Every element of a tile is one chain in ascending order: floats by fused multiply-adds, int16 pairs exactly in int32. So
an element does not depend on the shape of the tile that it is computed in, nor on the rows beside it. R and V are such
that sums and operands stay in registers and that there are chains enough to hide the latency of an instruction.

Rows are given by the address of R int64 addresses, columns by a panel 16 wide (`lift`): row k of vector v is at
panel + 64 k + (v // 2) * gap + 32 * (v % 2), where `gap` leads from a panel to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.lift import PAIRS
from polykv.fast.cpu.lift_simd import codes8, look_up
from polykv.fast.cpu.simd import fetch_line
from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I16X16,
    I32,
    I32X8,
    I64,
    Addr,
    Floats,
    Level,
    call,
    cgutils,
    const,
    level,
    op,
    read,
    spread,
    types,
    write,
)
from polykv.fast.cpu.simd_math import multiply_add

LEVEL = level()
Int = types.int64
# A group of 32 dims as pairs: in a panel 16 rows of codes and one of scales, in a query 16 int32 and a float32.
GROUP_BYTES, QUERY_BYTES = 64 * (PAIRS + 1), 4 * (PAIRS + 1)


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


def columns(b: Any, panel: Any, gap: Any, vectors: int, kind: ir.Type) -> list[Any]:
    """Emit one row of a panel."""
    return [read(b, plus(b, b.add(panel, b.mul(gap, I64(v // 2))), 32 * (v % 2)), kind) for v in range(vectors)]


def scalars(b: Any, rows: list[Any], offset: Any, kind: ir.Type) -> list[Any]:
    """Emit one value of each row, in all lanes."""
    return [spread(b, read(b, b.add(p, offset), kind)) for p in rows]


def dot_pairs(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit z + the two products of int16 in every int32 lane."""
    if LEVEL == Level.VNNI:
        return call(b, "llvm.x86.avx512.vpdpwssd.256", I32X8, z, x, y)
    x, y = b.bitcast(x, I16X16), b.bitcast(y, I16X16)
    if LEVEL == Level.AVX2:
        return b.add(z, call(b, "llvm.x86.avx2.pmadd.wd", I32X8, x, y))
    for half in (0, 1):
        pick = ir.Constant(ir.VectorType(I32, 8), list(range(half, 16, 2)))
        z = b.add(z, b.mul(*[b.sext(b.shuffle_vector(v, v, pick), I32X8) for v in (x, y)]))
    return z


def pairs_product(rows: int, vectors: int) -> Any:
    """S = Q K^T of rounded queries (`round_query`) and a panel of pairs."""

    @op(types.void, Addr, Int, Addr, Int, Addr, Int)
    def build(b: Any, q: Any, groups: Any, panel: Any, gap: Any, s: Any, s_step: Any) -> None:
        """Address of the rows' addresses, groups of 32 dims, panel, gap, scores and bytes from row to row of them."""
        total, dots = (Sums(b, rows, vectors, kind) for kind in (F32X8, I32X8))
        total.update(b, lambda _, r, v: const(F32X8, 0.0))
        queries = starts(b, q, I64(0), rows)
        with cgutils.for_range(b, groups, intp=I64) as group:
            codes, at = b.add(panel, b.mul(group.index, I64(GROUP_BYTES))), b.mul(group.index, I64(QUERY_BYTES))
            dots.update(b, lambda _, r, v: const(I32X8, 0))
            for k in range(PAIRS):
                x = columns(b, plus(b, codes, 64 * k), gap, vectors, I32X8)
                u = scalars(b, queries, plus(b, at, 4 * k), I32)
                dots.update(b, lambda c, r, v, u=u, x=x: dot_pairs(b, u[r], x[v], c))  # type: ignore[misc]
            scale = columns(b, plus(b, codes, 64 * PAIRS), gap, vectors, F32X8)
            d = scalars(b, queries, plus(b, at, 4 * PAIRS), F32)
            total.update(
                b, lambda c, r, v: multiply_add(b, b.sitofp(b.load(dots[r, v]), F32X8), b.fmul(scale[v], d[r]), c)
            )
        for r, v in total.spots:
            write(b, plus(b, b.add(s, b.mul(s_step, I64(r))), 32 * v), b.load(total[r, v]))

    return build


def floats_product(rows: int, vectors: int, fresh: bool) -> Any:
    """C = A x panel of float32; with `fresh` false C = C * f + A x panel."""

    @op(types.void, Addr, Int, Addr, Int, Addr, Int, Addr)
    def build(b: Any, a: Any, n: Any, panel: Any, gap: Any, c: Any, offset: Any, f: Any) -> None:
        """Rows of A, their length, panel, gap, rows of C, offset of the columns in them, float32 factors of rows."""
        sums, given, out = Sums(b, rows, vectors, F32X8), starts(b, a, I64(0), rows), starts(b, c, offset, rows)
        begin(b, sums, out, None if fresh else f)
        with cgutils.for_range(b, n, intp=I64) as step:
            x = columns(b, b.add(panel, b.mul(step.index, I64(64))), gap, vectors, F32X8)
            u = scalars(b, given, b.mul(step.index, I64(4)), F32)
            sums.update(b, lambda c, r, v: multiply_add(b, u[r], x[v], c))
        finish(b, sums, out)

    return build


def codes_product(rows: int, vectors: int) -> Any:
    """C = C * f + P x (centroids of three-bit codes), looked up on the way: for rows too few to share a panel."""

    @op(types.void, Addr, Int, Addr, Addr, Addr, Int, Int, Floats, Addr, Int, Addr)
    def build(
        b: Any,
        p: Any,
        n: Any,
        records: Any,
        first: Any,
        near: Any,
        at: Any,
        width: Any,
        table: Any,
        c: Any,
        offset: Any,
        f: Any,
    ) -> None:
        """Rows of P and their length; int64 per piece of 8 tokens: its record, first token there, and the address of a
        cache line to ask for; offset of the codes in a token's row, bytes of such a row; centroids; rows of C, offset
        of the columns in them (as far into `near`), factors."""
        sums, given, out = Sums(b, rows, vectors, F32X8), starts(b, p, I64(0), rows), starts(b, c, offset, rows)
        begin(b, sums, out, f)
        with cgutils.for_range(b, b.lshr(plus(b, n, 7), I64(3)), intp=I64) as piece:
            spot, t0 = b.mul(piece.index, I64(8)), b.mul(piece.index, I64(8))
            token = read(b, b.add(first, spot), I64)
            fetch_line(b, b.add(read(b, b.add(near, spot), I64), offset))
            codes = b.add(b.add(read(b, b.add(records, spot), I64), b.mul(token, width)), at)
            rest = b.sub(n, t0)
            count = b.select(b.icmp_signed("<", rest, I64(8)), rest, I64(8))
            with cgutils.for_range(b, count, intp=I64) as step:
                row = b.add(codes, b.mul(step.index, width))
                x = [look_up(b, table, codes8(b, plus(b, row, 3 * v))) for v in range(vectors)]
                u = scalars(b, given, b.mul(b.add(t0, step.index), I64(4)), F32)
                sums.update(b, lambda c, r, v: multiply_add(b, u[r], x[v], c))
        finish(b, sums, out)

    return build


def begin(b: Any, sums: Sums, out: list[Any], factors: Any) -> None:
    """Emit the start of sums: zeros, or what is at `out` times the factors."""
    if factors is None:
        sums.update(b, lambda _, r, v: const(F32X8, 0.0))
        return
    each = [spread(b, read(b, plus(b, factors, 4 * r), F32)) for r in range(len(out))]
    sums.update(b, lambda _, r, v: b.fmul(read(b, plus(b, out[r], 32 * v), F32X8), each[r]))


def finish(b: Any, sums: Sums, out: list[Any]) -> None:
    """Emit the stores of sums."""
    for r, v in sums.spots:
        write(b, plus(b, out[r], 32 * v), b.load(sums[r, v]))


# Shapes in use: up to three rows (one token of a model with three query heads per kv head), and rows by fours. A wide
# tile of pairs needs more registers than there are without AVX-512.
WIDE_PAIRS = LEVEL == Level.VNNI
pairs3, pairs4 = pairs_product(3, 4 if WIDE_PAIRS else 2), pairs_product(4, 2)
scores3, scores4 = floats_product(3, 4, True), floats_product(4, 2, True)
outputs3, outputs4 = floats_product(3, 4, False), floats_product(4, 2, False)
codes3, codes4 = codes_product(3, 2), codes_product(4, 2)
