"""Vector operations of the trellis types: one step of the search for the best path.

What a step keeps of a state are its low six bits, its class. The least costs of the 64 classes lie in 64 float32, in an
order for which hardly a lane has to move. With class = j 2^k + p, a step of symbols u is

    to[u, j] = min over p of (from[j, p] + (x - codebook[u, j, p])^2)

and [u, j], read as one number, is the class after it. For 8 symbols two orders take turns: [p, j], of which whole
vectors over j are read, gives [u, j]; that is [j, p] of the next step, of which single values are read, each spread
over a vector of all u; it gives [j, u], which is [p, j] again. For 4 symbols there is one order, in which class 8 h + v
lies at 8 v + h turned left by one of its three bits: classes that differ in their highest bit lie side by side. Such a
pair is read and spread over a vector of all u and that bit, and results change their lanes once.

Costs are not negative, so they are compared as integers, which processors do more of at a time.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.simd import fold
from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I8,
    I32,
    I32X8,
    I64,
    Addr,
    Floats,
    Ints,
    call,
    features,
    op,
    read,
    spread,
    types,
    write,
)
from polykv.fast.cpu.simd_math import multiply_add
from polykv.fast.cpu.simd_wide import F32X16, I32X16, lanes

# One lane of four rows in an instruction.
HAS_TWO_TABLES = {"avx512f", "avx512vl"} <= features()
F32X2 = ir.VectorType(F32, 2)
# Bytes of a vector, and of the costs of all classes.
STEP, CLASSES = 32, 256


def _plus(b: Any, p: Any, offset: int) -> Any:
    return b.add(p, I64(offset))


def _grown(b: Any, cost: Any, x: Any, level: Any) -> Any:
    """Emit cost + (x - level)^2 as integers. Searching and tracing back both use this, and so get equal bits."""
    d = b.fsub(x, level)
    return b.bitcast(multiply_add(b, d, d, cost), I32X8)


def _less(b: Any, x: Any, y: Any) -> Any:
    """Emit the smaller, lane by lane."""
    return b.select(b.icmp_signed("<", x, y), x, y)


@op(types.void, types.float32, Addr, Addr)
def step8_even(b: Any, x: Any, costs: Any, book: Any) -> None:
    """8 symbols; costs [p, j] to [u, j] behind them, codebook [p, u, j]."""
    x = spread(b, x)
    best: list[Any] = []
    # p outside, so that work can begin with those costs that the step before has finished first.
    for p in range(8):
        row = read(b, _plus(b, costs, STEP * p), F32X8)
        new = [_grown(b, row, x, read(b, _plus(b, book, STEP * (8 * p + u)), F32X8)) for u in range(8)]
        best = [_less(b, *pair) for pair in zip(new, best, strict=True)] if best else new
    for u in range(8):
        write(b, _plus(b, costs, CLASSES + STEP * u), best[u])


@op(types.void, types.float32, Addr, Addr)
def step8_odd(b: Any, x: Any, costs: Any, book: Any) -> None:
    """8 symbols; costs [j, p] to [j, u] behind them, codebook [j, p, u]."""
    x = spread(b, x)
    for j in range(8):
        old = [spread(b, read(b, _plus(b, costs, 4 * (8 * j + p)), F32)) for p in range(8)]
        new = [_grown(b, old[p], x, read(b, _plus(b, book, STEP * (8 * j + p)), F32X8)) for p in range(8)]
        write(b, _plus(b, costs, CLASSES + STEP * j), reduce(partial(_less, b), new))


@op(types.void, types.float32, Addr, Addr)
def step4(b: Any, x: Any, costs: Any, book: Any) -> None:
    """4 symbols; codebook [low three bits of j, p, u, highest bit of j]."""
    x = spread(b, x)
    for i in range(8):
        new = []
        for p in range(4):
            # Bit 0 of i is the third bit of the old class, the other two choose the pair.
            pair = read(b, _plus(b, costs, STEP * ((i & 1) * 4 + p) + 8 * (i >> 1)), F32X2)
            old = b.shuffle_vector(pair, pair, ir.Constant(I32X8, [0, 1] * 4))
            new.append(_grown(b, old, x, read(b, _plus(b, book, STEP * (4 * i + p)), F32X8)))
        best = reduce(partial(_less, b), new)
        # Back to the order of memory, in which the highest bit comes first.
        turned = b.shuffle_vector(best, best, ir.Constant(I32X8, [0, 4, 1, 5, 2, 6, 3, 7]))
        write(b, _plus(b, costs, CLASSES + STEP * i), turned)


def _block(b: Any, x: Any, old: Any, book: Any, new: Any, bits: int) -> None:
    """Emit the part of a step that begins in 2^k classes, for 8 groups: a vector has a value of each.

    old: costs [p] of the classes; book: levels [p, u]; new: where the cost of symbol 0 goes, others 64 >> k rows on.
    """
    n = 1 << bits
    best: list[Any] = []
    for p in range(n):
        cost = read(b, _plus(b, old, STEP * p), F32X8)
        levels = [spread(b, read(b, _plus(b, book, 4 * (n * p + u)), F32)) for u in range(n)]
        grown = [_grown(b, cost, x, level) for level in levels]
        best = [_less(b, *pair) for pair in zip(grown, best, strict=True)] if best else grown
    for u in range(n):
        write(b, _plus(b, new, STEP * (64 >> bits) * u), best[u])


@op(types.void, Floats, Addr, Addr, Addr)
def block8(b: Any, x: Any, old: Any, book: Any, new: Any) -> None:
    """8 classes of 8 groups, 8 symbols."""
    _block(b, x, old, book, new, 3)


@op(types.void, Floats, Addr, Addr, Addr)
def block4(b: Any, x: Any, old: Any, book: Any, new: Any) -> None:
    """4 classes of 8 groups, 4 symbols."""
    _block(b, x, old, book, new, 2)


def _matches(b: Any, x: Any, cost: Any, old: Any, book: Any) -> Any:
    """Emit, as bits, which of 8 predecessors (old costs `old`, levels at `book`) lead to exactly this cost."""
    equal = b.icmp_signed("==", _grown(b, old, spread(b, x), read(b, book, F32X8)), spread(b, cost))
    return b.zext(b.bitcast(equal, I8), I64)


def _column(b: Any, p: Any, n: int) -> Any:
    """Emit n float32, a vector apart, as often as they fit into one."""
    v = ir.Constant(F32X8, ir.Undefined)
    for i in range(n):
        v = b.insert_element(v, read(b, _plus(b, p, STEP * i), F32), I32(i))
    return v if n == 8 else b.shuffle_vector(v, v, ir.Constant(I32X8, [i % n for i in range(8)]))


@op(types.int64, types.float32, types.int32, Addr, Addr)
def matches_row(b: Any, x: Any, cost: Any, old: Any, book: Any) -> Any:
    """Bit p: the old cost p of 8 in a row, plus that of level p at `book`, has the bits `cost`."""
    return _matches(b, x, cost, read(b, old, F32X8), book)


@op(types.int64, types.float32, types.int32, Addr, Addr)
def matches_column8(b: Any, x: Any, cost: Any, old: Any, book: Any) -> Any:
    """The same of 8 old costs that lie 32 bytes apart."""
    return _matches(b, x, cost, _column(b, old, 8), book)


@op(types.int64, types.float32, types.int32, Addr, Addr)
def matches_column4(b: Any, x: Any, cost: Any, old: Any, book: Any) -> Any:
    """The same of 4 old costs that lie 32 bytes apart; 8 levels are read."""
    return b.and_(_matches(b, x, cost, _column(b, old, 4), book), I64(15))


def _lane(b: Any, rows: Any, lane: Any, n: int) -> Any:
    """Emit the values of one lane of n rows of 8 float32, as often as they fit into a vector."""
    if not HAS_TWO_TABLES:
        return _column(b, b.add(rows, b.mul(b.sext(lane, I64), I64(4))), n)
    places = b.add(spread(b, lane, 16), ir.Constant(I32X16, [0, 8, 16, 24] * 4))
    found = []
    for start in range(0, STEP * n, 2 * 64):
        near, far = (read(b, _plus(b, rows, start + at), F32X16) for at in (0, 64))
        found.append(call(b, "llvm.x86.avx512.vpermi2var.ps.512", F32X16, near, places, far))
    return lanes(b, found[0], found[-1], [0, 1, 2, 3, 20, 21, 22, 23])


@op(types.int64, types.float32, types.int32, Addr, types.int32, Addr)
def matches_lane8(b: Any, x: Any, cost: Any, rows: Any, lane: Any, book: Any) -> Any:
    """Bit p: the old cost of one of 8 groups in row p of 8, plus that of level p at `book`, has the bits `cost`."""
    return _matches(b, x, cost, _lane(b, rows, lane, 8), book)


@op(types.int64, types.float32, types.int32, Addr, types.int32, Addr)
def matches_lane4(b: Any, x: Any, cost: Any, rows: Any, lane: Any, book: Any) -> Any:
    """The same of 4 rows; 8 levels are read."""
    return b.and_(_matches(b, x, cost, _lane(b, rows, lane, 4), book), I64(15))


@op(Floats, Addr, types.int64)
def spaced(b: Any, p: Any, step: Any) -> Any:
    """8 float32 that lie `step` bytes apart."""
    v = ir.Constant(F32X8, ir.Undefined)
    for i in range(8):
        v = b.insert_element(v, read(b, b.add(p, b.mul(step, I64(i))), F32), I32(i))
    return v


@op(types.int32, Addr)
def least(b: Any, costs: Any) -> Any:
    """The least cost of all classes, as an integer."""
    vectors = [read(b, _plus(b, costs, STEP * i), I32X8) for i in range(8)]
    return fold(b, reduce(partial(_less, b), vectors), _less)


@op(Ints, Addr)
def least8(b: Any, costs: Any) -> Any:
    """The least costs of all classes of 8 groups, as integers; costs [class, group]."""
    return reduce(partial(_less, b), [read(b, _plus(b, costs, STEP * i), I32X8) for i in range(64)])


@op(types.int64, Ints, Addr)
def equal8(b: Any, cost: Any, row: Any) -> Any:
    """Which of 8 costs have the bits of those in `row`, one bit each."""
    return b.zext(b.bitcast(b.icmp_signed("==", read(b, row, I32X8), cost), I8), I64)


@op(types.int64, types.int32, Addr)
def equal64(b: Any, cost: Any, costs: Any) -> Any:
    """Which of the 64 costs have the bits `cost`, one bit each."""
    bits, wanted = I64(0), spread(b, cost)
    for i in range(8):
        same = b.icmp_signed("==", read(b, _plus(b, costs, STEP * i), I32X8), wanted)
        bits = b.or_(bits, b.shl(b.zext(b.bitcast(same, I8), I64), I64(8 * i)))
    return bits


@op(types.int64, types.int64)
def lowest(b: Any, bits: Any) -> Any:
    """The place of the lowest of 64 bits, 0 if there is none."""
    place = call(b, "llvm.cttz.i64", I64, bits, ir.IntType(1)(0))
    return b.and_(place, I64(63))
