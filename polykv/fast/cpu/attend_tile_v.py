"""Outputs with values that are codes: rounded softmax weights (`attend_weights`) times integers, exact in int32.

Lanes are dims. A lane of values holds a dim of two tokens, t and t + 8 (of a couple of pieces), as int16, and a lane of
weights holds theirs: one instruction multiplies and adds both (vpdpwssd). After every 32 tokens the sums are scaled and
added to what there is in float32. Three-bit codes of few rows are looked up on the way, in registers; many rows share
panels, int32 [tokens / 2, dims of a slice].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polykv.fast.cpu.attend_tile import Int, Sums, plus, scalars, starts
from polykv.fast.cpu.attend_weights import SPAN, STEP_ROW, WEIGHT_ROW
from polykv.fast.cpu.kv_layout import PIECE
from polykv.fast.cpu.lift_levels import LEAST, SLICE, lookup
from polykv.fast.cpu.simd import fetch_line
from polykv.fast.cpu.simd_core import F32, I32, I64, Addr, cgutils, const, op, read, spread, types, write
from polykv.fast.cpu.simd_wide import F32X16, I32X16, as_floats, dot_pairs, multiply_add
from polykv.types import UNIT

# Couples of pieces in a unit, and in the tokens of one scale.
COUPLES, HALF = UNIT // (2 * PIECE), SPAN // (2 * PIECE)
# From a couple to what emits the vectors of values of step 2 i + j of it, i a loop's index and j = 0 or 1.
Steps = Callable[[Any, Any, int], list[Any]]
Source = Callable[[Any, Any], Steps]


def _multiply(
    b: Any,
    rows: int,
    vectors: int,
    weights: tuple[Any, Any],
    couples: tuple[Any, Any],
    out: list[Any],
    f: Any,
    x: Source,
) -> None:
    """Emit C = C * f + W x: weights and their scales by address, first couple and one past the last, rows of C."""
    w, scales = weights
    sums = Sums(b, rows, vectors, I32X16)
    for half in range(COUPLES // HALF):
        sums.update(b, lambda _, r, v: const(I32X16, 0))
        low, high = I64(HALF * half), I64(HALF * (half + 1))
        low = b.select(b.icmp_signed(">", couples[0], low), couples[0], low)
        high = b.select(b.icmp_signed("<", couples[1], high), couples[1], high)
        with cgutils.for_range(b, b.sub(high, low), intp=I64) as found:
            couple = b.add(found.index, low)
            steps, mine = x(b, couple), b.add(w, b.mul(couple, I64(4 * PIECE)))
            given = [plus(b, mine, WEIGHT_ROW * r) for r in range(rows)]
            with cgutils.for_range(b, I64(PIECE // 2), intp=I64) as step:
                for odd in range(2):
                    values = steps(b, step.index, odd)
                    u = scalars(b, given, plus(b, b.mul(step.index, I64(8)), 4 * odd), I32, 16)
                    sums.update(b, lambda c, r, v, u=u, values=values: dot_pairs(b, u[r], values[v], c))  # type: ignore[misc]
        d = [spread(b, read(b, plus(b, scales, STEP_ROW * r + 4 * half), F32), 16) for r in range(rows)]
        for r, v in sums.spots:
            at = plus(b, out[r], 64 * v)
            before = read(b, at, F32X16)
            if half == 0:
                # In the first half, because there is one in every unit that is folded.
                before = b.fmul(before, spread(b, read(b, plus(b, f, 4 * r), F32), 16))
            write(b, at, multiply_add(b, as_floats(b, b.load(sums[r, v])), d[r], before))


def panel_product(rows: int, vectors: int) -> Any:
    """C = C * f + W x panel."""

    @op(types.void, Addr, Addr, Int, Int, Addr, Addr, Int, Addr)
    def build(b: Any, w: Any, scales: Any, first: Any, last: Any, panel: Any, c: Any, offset: Any, f: Any) -> None:
        """Rows of weights and of their scales; first couple and one past the last; panel; rows of C, offset of the
        columns in them, factors."""

        def source(b: Any, couple: Any) -> Steps:
            start = b.add(panel, b.mul(couple, I64(64 * vectors * PIECE)))

            def step(b: Any, i: Any, odd: int) -> list[Any]:
                at = plus(b, b.add(start, b.mul(i, I64(128 * vectors))), 64 * vectors * odd)
                return [read(b, plus(b, at, 64 * v), I32X16) for v in range(vectors)]

            return step

        _multiply(b, rows, vectors, (w, scales), (first, last), starts(b, c, offset, rows), f, source)

    return build


def codes_product(rows: int, dims: int) -> Any:
    """C = C * f + W x (integers of three-bit codes)."""

    @op(types.void, Addr, Addr, Int, Int, Addr, Addr, Addr, Int, Int, Addr, Addr, Int, Addr)
    def build(
        b: Any,
        w: Any,
        scales: Any,
        first: Any,
        last: Any,
        records: Any,
        tokens: Any,
        near: Any,
        at: Any,
        width: Any,
        table: Any,
        c: Any,
        offset: Any,
        f: Any,
    ) -> None:
        """Rows of weights and of their scales; first couple and one past the last; int64 per piece: its record, first
        token there, and the address of what to ask for; offset of the codes in a token's row, bytes of such a row;
        tables; rows of C, offset of the columns in them, factors."""
        look = lookup(b, table, dims)

        def source(b: Any, couple: Any) -> Steps:
            spot = b.mul(couple, I64(16))
            places = []
            for piece in (0, 8):
                record, token, ahead = (read(b, plus(b, b.add(a, spot), piece), I64) for a in (records, tokens, near))
                ahead = b.add(ahead, b.mul(at, I64(PIECE)))
                fetch_line(b, ahead)
                places.append((b.add(b.add(record, b.mul(token, width)), at), ahead))

            def step(b: Any, i: Any, odd: int) -> list[Any]:
                if dims > 2 * LEAST:
                    # The rest of what these pieces are asked for, spread over their steps.
                    fetch_line(b, b.add(places[odd][1], b.mul(plus(b, i, 1), I64(64))))
                row = b.mul(plus(b, b.mul(i, I64(2)), odd), width)
                return look(b, *[b.add(start, row) for start, _ in places])

            return step

        _multiply(b, rows, dims // 16, (w, scales), (first, last), starts(b, c, offset, rows), f, source)

    return build


# Slices of three rows and of four; those of least width serve groups of dims that are no multiple of a slice.
codes3, codes4 = codes_product(3, SLICE), codes_product(4, SLICE)
codes3_least, codes4_least = (codes3, codes4) if SLICE == LEAST else [codes_product(r, LEAST) for r in (3, 4)]
panel4, panel4_least, panel3_least = panel_product(4, SLICE // 16), panel_product(4, 1), panel_product(3, 1)
# Of scalar types, 32 dims of which have a scale.
panel3_pair, panel4_pair = panel_product(3, 2), panel_product(4, 2)
