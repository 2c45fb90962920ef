"""Scores with keys that are integers: rounded queries (`attend_query`) times the codes as they lie in their records.

Lanes are the 8 tokens of a piece, four dims to a lane (`kv_layout`), so a vector of codes is used as it is loaded.

    VNNI             the bytes of q = 256 high + low times four unsigned bytes at once (vpdpbusd). Codes are made
                     unsigned by adding 128; what that adds, 128 sum(q), is known with the query.
    AVX2, PORTABLE   codes 0 and 2, then 1 and 3 of every four, widened to pairs of int16 (vpmaddwd).

Both give q x k of 32 dims exactly in int32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from polykv.fast.cpu.attend_tile import Int, Sums, plus, scalars, starts
from polykv.fast.cpu.simd import fetch_line
from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I16,
    I16X16,
    I32,
    I32X8,
    I64,
    Addr,
    Level,
    call,
    cgutils,
    const,
    features,
    op,
    read,
    spread,
    types,
    write,
)
from polykv.fast.cpu.simd_math import multiply_add, widen
from polykv.fast.cpu.simd_wide import LEVEL, dot_pairs

IN_BYTES = LEVEL == Level.VNNI
# A group of 32 dims in a query: 8 quads, high bytes and low ones, or pairs; the start of its sums; its scale; what
# minima of keys are multiplied by.
QUADS, BIAS_AT, SCALE_AT, SUM_AT, QUERY_GROUP = 8, 64, 68, 72, 76
# Pieces that three rows take at a time. A wide tile needs more registers than there are without AVX-512.
WIDE = 4 if "avx512vl" in features() else 2
HALVES = ir.VectorType(I16, 8)


def keys_product(rows: int, pieces: int, asks: bool) -> Any:
    """S = Q K^T of `rows` rounded queries with some pieces of 8 tokens."""

    @op(types.void, Addr, Int, Addr, Int, Addr, Addr, Int, Int, Addr, Int, Addr)
    def build(
        b: Any,
        q: Any,
        groups: Any,
        codes: Any,
        step: Any,
        records: Any,
        first: Any,
        scale_at: Any,
        block: Any,
        s: Any,
        s_step: Any,
        near: Any,
    ) -> None:
        """Address of the rows' addresses, groups of 32 dims; int64 per piece: its codes, with the bytes from quad to
        quad; its record and first token there, with the place of the scales in a record and its number of tokens;
        scores and bytes from row to row of them; int64 per piece, what to ask for meanwhile."""
        # Registers are for the sums of integers; these stay in memory, so that the compiler does not move them there.
        out = {(r, v): plus(b, b.add(s, b.mul(s_step, I64(r))), 32 * v) for r in range(rows) for v in range(pieces)}
        for at in out.values():
            write(b, at, const(F32X8, 0.0))
        queries = starts(b, q, I64(0), rows)
        places, ahead = starts(b, codes, I64(0), pieces), starts(b, near, I64(0), pieces)
        tokens = [b.mul(t, I64(2)) for t in starts(b, first, I64(0), pieces)]
        scales = [b.add(b.add(p, t), scale_at) for p, t in zip(starts(b, records, I64(0), pieces), tokens, strict=True)]
        with cgutils.for_range(b, groups, intp=I64) as group:
            at = b.mul(group.index, I64(QUERY_GROUP))
            mine = [b.add(p, at) for p in queries]
            start = b.mul(group.index, b.mul(step, I64(QUADS)))
            share = b.mul(group.index, I64(32 * QUADS))

            def ask(n: int, ahead: list[Any] = ahead, share: Any = share) -> None:
                if asks:
                    fetch_line(b, plus(b, b.add(ahead[n % pieces], share), 64 * (n // pieces)))

            if asks:
                # The scales of the piece, behind all its codes: 16 bytes a group.
                tail = b.add(b.mul(groups, I64(32 * QUADS)), b.mul(group.index, I64(16)))
                for p in ahead:
                    fetch_line(b, b.add(p, tail))

            dots = _dots(b, mine, [b.add(p, start) for p in places], step, ask)
            offset = b.mul(group.index, b.mul(block, I64(2)))
            scale = [_halves(b, b.add(p, offset)) for p in scales]
            d = scalars(b, mine, I64(SCALE_AT), F32)
            for (r, v), place in out.items():
                product = b.fmul(scale[v], d[r])
                write(b, place, multiply_add(b, b.sitofp(dots[r][v], F32X8), product, read(b, place, F32X8)))

    return build


def _dots(b: Any, queries: list[Any], places: list[Any], step: Any, ask: Any) -> list[list[Any]]:
    """Emit the exact products of 32 dims: int32 [rows][pieces] vectors."""
    rows, pieces = range(len(queries)), range(len(places))
    zero = const(I32X8, 0)
    high = [[zero for _ in pieces] for _ in rows]
    low = [[zero for _ in pieces] for _ in rows]
    # A request to a piece's four lines each, spread over the quads.
    asked = 4 * len(places) // QUADS
    for j in range(QUADS):
        for n in range(asked * j, asked * (j + 1)):
            ask(n)
        x = [read(b, b.add(p, b.mul(step, I64(j))), I32X8) for p in places]
        for v in pieces:
            parts = _parts(b, x[v])
            for r in rows:
                if IN_BYTES:
                    at = (4 * j, 4 * (QUADS + j))
                else:
                    at = (8 * j, 8 * j + 4)
                u = [scalars(b, queries[r : r + 1], I64(i), I32)[0] for i in at]
                if IN_BYTES:
                    high[r][v], low[r][v] = (
                        call(b, "llvm.x86.avx512.vpdpbusd.256", I32X8, c, parts[0], y)
                        for c, y in zip((high[r][v], low[r][v]), u, strict=True)
                    )
                else:
                    low[r][v] = dot_pairs(b, parts[1], u[1], dot_pairs(b, parts[0], u[0], low[r][v]))
    if not IN_BYTES:
        return low
    bias = scalars(b, queries, I64(BIAS_AT), I32)
    return [[b.add(b.add(b.shl(high[r][v], const(I32X8, 8)), low[r][v]), bias[r]) for v in pieces] for r in rows]


def _parts(b: Any, x: Any) -> tuple[Any, Any]:
    """Emit codes as the products take them: unsigned bytes, or two vectors of pairs."""
    if IN_BYTES:
        return b.xor(x, const(I32X8, -0x7F7F7F80)), None
    words, eight = b.bitcast(x, I16X16), const(I16X16, 8)
    even, odd = b.ashr(b.shl(words, eight), eight), b.ashr(words, eight)
    return b.bitcast(even, I32X8), b.bitcast(odd, I32X8)


def _halves(b: Any, p: Any) -> Any:
    """Emit the 8 float16 at p as float32."""
    return widen(b, b.zext(read(b, p, HALVES), I32X8))


def minima_product(rows: int) -> Any:
    """S += (sums of the queries' groups) x (minima of the keys' groups + middle x their scales), for two pieces."""

    @op(types.void, Addr, Int, Addr, Addr, Int, Int, types.float32, Int, Addr, Int)
    def build(
        b: Any,
        q: Any,
        groups: Any,
        records: Any,
        first: Any,
        scale_at: Any,
        minima_at: Any,
        middle: Any,
        block: Any,
        s: Any,
        s_step: Any,
    ) -> None:
        """As in `keys_product`, where codes were less `middle`; the places of scales and minima in a record."""
        sums, queries = Sums(b, rows, 2, F32X8), starts(b, q, I64(SUM_AT), rows)
        out = [b.add(s, b.mul(s_step, I64(r))) for r in range(rows)]
        sums.update(b, lambda _, r, v: read(b, plus(b, out[r], 32 * v), F32X8))
        tokens = [b.mul(t, I64(2)) for t in starts(b, first, I64(0), 2)]
        minima, scales = (
            [b.add(p, t) for p, t in zip(starts(b, records, place, 2), tokens, strict=True)]
            for place in (minima_at, scale_at)
        )
        middle = spread(b, middle)
        with cgutils.for_range(b, groups, intp=I64) as group:
            offset = b.mul(group.index, b.mul(block, I64(2)))
            m, d = ([_halves(b, b.add(p, offset)) for p in places] for places in (minima, scales))
            m = [multiply_add(b, middle, *each) for each in zip(d, m, strict=True)]
            u = scalars(b, queries, b.mul(group.index, I64(QUERY_GROUP)), F32)
            sums.update(b, lambda c, r, v: multiply_add(b, u[r], m[v], c))
        for r, v in sums.spots:
            write(b, plus(b, out[r], 32 * v), b.load(sums[r, v]))

    return build


# Codes that are read where they are stored ask for the next ones; of those that are unpacked first, the unpacking does.
keys3, keys4 = keys_product(3, WIDE, True), keys_product(4, 2, True)
keys3_more, keys4_more = keys_product(3, WIDE, False), keys_product(4, 2, False)
minima3, minima4 = minima_product(3), minima_product(4)
