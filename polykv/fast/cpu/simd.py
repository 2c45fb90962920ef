"""Memory and lanes for the vectors of `simd_core`.

Addresses are plain integers (`addr`). A kernel must not allocate the array whose address it takes: numba frees an
array after its last mention, and an address is no mention. Take it as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I8,
    I16,
    I32,
    I32X8,
    I64,
    Addr,
    Floats,
    Ints,
    at,
    cgutils,
    intrinsic,
    op,
    read,
    spread,
    types,
    write,
)

# -- memory ------------------------------------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator]
def addr(_: Any, array: Any) -> Any:
    """Address of an array's first element. The array must be an argument of the kernel that Python calls."""

    def emit(context: Any, b: Any, sig: Any, values: Any) -> Any:
        data = context.make_array(sig.args[0])(context, b, values[0]).data
        return b.ptrtoint(data, I64)

    return types.int64(array), emit


def fetch_line(b: Any, p: Any) -> None:
    """Emit a request for the cache line of p, to the second-level cache: requests to the first wait in a shorter queue,
    and read scattered records two thirds as fast."""
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    b.call(cgutils.get_or_insert_function(b.module, kind, name), [at(b, p, I8), I32(0), I32(2), I32(1)])


@op(types.void, Addr)
def prefetch(b: Any, p: Any) -> None:
    """Bring the cache line of p near; any address is allowed."""
    fetch_line(b, p)


@op(types.int64, Addr)
def get_i64(b: Any, p: Any) -> Any:
    """The int64 at p."""
    return read(b, p, I64)


@op(types.float32, Addr)
def get_f32(b: Any, p: Any) -> Any:
    """The float32 at p."""
    return read(b, p, F32)


@op(types.int32, Addr)
def get_i32(b: Any, p: Any) -> Any:
    """The int32 at p."""
    return read(b, p, I32)


@op(types.void, Addr, types.float32)
def put_f32(b: Any, p: Any, x: Any) -> None:
    """Store a float32 at p."""
    write(b, p, x)


@op(types.void, Addr, types.int32)
def put_i32(b: Any, p: Any, x: Any) -> None:
    """Store an int32 at p."""
    write(b, p, x)


@op(types.void, Addr, types.int32)
def put_i8(b: Any, p: Any, x: Any) -> None:
    """Store the low byte of x at p."""
    write(b, p, b.trunc(x, I8))


@op(types.void, Addr, types.int32)
def put_i16(b: Any, p: Any, x: Any) -> None:
    """Store the low half of x at p."""
    write(b, p, b.trunc(x, I16))


@op(types.int32, Addr)
def get_u16(b: Any, p: Any) -> Any:
    """The uint16 at p."""
    return b.zext(read(b, p, I16), I32)


@op(types.int32, Addr)
def get_u8(b: Any, p: Any) -> Any:
    """The byte at p."""
    return b.zext(read(b, p, I8), I32)


@op(types.void, Addr, types.int64)
def put_i64(b: Any, p: Any, x: Any) -> None:
    """Store an int64 at p."""
    write(b, p, x)


@op(types.float64, Addr)
def get_f64(b: Any, p: Any) -> Any:
    """The float64 at p."""
    return read(b, p, ir.DoubleType())


@op(types.void, Addr, Ints)
def store_i(b: Any, p: Any, v: Any) -> None:
    """Store 32 bytes at p."""
    write(b, p, v)


@op(Ints, Addr)
def load_i(b: Any, p: Any) -> Any:
    """8 int32 at p."""
    return read(b, p, I32X8)


@op(Floats, Addr)
def load_f(b: Any, p: Any) -> Any:
    """8 float32 at p."""
    return read(b, p, F32X8)


@op(types.void, Addr, Floats)
def store_f(b: Any, p: Any, v: Any) -> None:
    """Store 8 float32 at p."""
    write(b, p, v)


@op(Ints, Addr)
def load_i8x8(b: Any, p: Any) -> Any:
    """8 int8 at p as int32 lanes."""
    return b.sext(read(b, p, ir.VectorType(I8, 8)), I32X8)


@op(types.void, Addr, Ints)
def store_i8x8(b: Any, p: Any, v: Any) -> None:
    """Store the low byte of each lane, 8 bytes at p."""
    write(b, p, b.trunc(v, ir.VectorType(I8, 8)))


@op(Ints, Addr)
def load_u16x8(b: Any, p: Any) -> Any:
    """8 uint16 at p as int32 lanes."""
    return b.zext(read(b, p, ir.VectorType(I16, 8)), I32X8)


@op(types.void, Addr, Ints)
def store_u16x8(b: Any, p: Any, v: Any) -> None:
    """Store the low half of each lane, 16 bytes at p."""
    write(b, p, b.trunc(v, ir.VectorType(I16, 8)))


# -- lanes -------------------------------------------------------------------------------------------------------


@op(Ints, types.int32)
def splat_i(b: Any, x: Any) -> Any:
    """x in all lanes."""
    return spread(b, x)


@op(Floats, types.float32)
def splat_f(b: Any, x: Any) -> Any:
    """x in all lanes."""
    return spread(b, x)


@op(types.float32, Floats, types.int32)
def lane_f(b: Any, v: Any, lane: Any) -> Any:
    """One lane."""
    return b.extract_element(v, lane)


def fold(b: Any, v: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    """Join 8 lanes as ((0,4),(2,6)),((1,5),(3,7)): the order is fixed, so float sums repeat bit for bit."""
    for half in (4, 2, 1):
        mask = ir.Constant(ir.VectorType(I32, half), list(range(half)))
        rest = ir.Constant(ir.VectorType(I32, half), list(range(half, 2 * half)))
        undefined = ir.Constant(v.type, ir.Undefined)
        v = join(b, b.shuffle_vector(v, undefined, mask), b.shuffle_vector(v, undefined, rest))
    return b.extract_element(v, I32(0))


@op(types.float32, Floats)
def sum_f(b: Any, v: Any) -> Any:
    """Sum of the lanes."""
    return fold(b, v, lambda b, x, y: b.fadd(x, y))


@op(types.float32, Floats)
def top_f(b: Any, v: Any) -> Any:
    """Largest lane; a NaN in the second of two compared lanes wins."""
    return fold(b, v, lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@op(types.int32, Ints)
def sum_i(b: Any, v: Any) -> Any:
    """Sum of the lanes."""
    return fold(b, v, lambda b, x, y: b.add(x, y))
