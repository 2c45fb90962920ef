"""256-bit vectors inside kernels: types, memory, arithmetic.

numba has no vector type, and what its loop vectorizer makes of packed 4-bit codes is several times slower than the
instructions that processors have for them. Here are two types for kernels, `Ints` (8 int32 lanes, also read as 32
bytes) and `Floats` (8 float32 lanes), and small functions on them, each of which becomes one or a few instructions:

    simd.py         loads, stores, lanes, integer and float arithmetic
    simd_math.py    fp16, bf16, exp, tanh
    simd_weights.py 8 matrix rows at once: transposing gathers, bit fields, integer dot products

Everything is generic LLVM IR, so it runs on any processor; only where `level()` knows a better instruction is it named.
Addresses are plain integers (`addr`). A kernel must not allocate the array whose address it takes: numba frees an
array after its last mention, and an address is no mention. Take it as an argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.core.datamodel import models
from numba.core.registry import cpu_target
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import register_model

# numba is untyped, and what it makes are calls inside kernels, where type checkers do not follow.
intrinsic: Any = numba_intrinsic
types: Any = numba_types
cgutils: Any = numba_cgutils

I8, I16, I32, I64, F16, F32 = (
    ir.IntType(8),
    ir.IntType(16),
    ir.IntType(32),
    ir.IntType(64),
    ir.HalfType(),
    ir.FloatType(),
)
I32X8, F32X8, I8X32, I16X16 = (ir.VectorType(t, n) for t, n in ((I32, 8), (F32, 8), (I8, 32), (I16, 16)))


class Level(IntEnum):
    """What the processor that kernels are compiled for offers beyond generic vectors."""

    PORTABLE = 0
    AVX2 = 1  # with FMA and F16C, which came with it
    VNNI = 2  # and the four-byte dot product on 256 bits


@cache
def features() -> frozenset[str]:
    """Names of the features that numba compiles for: the host's, or NUMBA_CPU_FEATURES where that is set."""
    triple, _, listed = cpu_target.target_context.codegen().magic_tuple()
    found = {f[1:] for f in listed.split(",") if f.startswith("+")}
    return frozenset(found | {triple.split("-")[0]})


@cache
def level() -> Level:
    """The level of this process."""
    has = features()
    if not {"x86_64", "avx2", "fma", "f16c"} <= has:
        return Level.PORTABLE
    return Level.VNNI if {"avx512vnni", "avx512vl"} <= has or "avxvnni" in has else Level.AVX2


class Vector(numba_types.Type):
    """A numba type that is one LLVM vector."""

    def __init__(self, name: str, llvm: ir.Type) -> None:
        self.llvm = llvm
        super().__init__(name)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, kind.llvm)  # type: ignore[no-untyped-call]


Ints = Vector("Ints", I32X8)
Floats = Vector("Floats", F32X8)
Addr = types.int64


def op(result: Any, *args: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: a function for kernels from a function build(builder, *values) -> value that emits LLVM IR."""

    def wrap(build: Callable[..., Any]) -> Any:
        def typed(_: Any, *given: Any) -> Any:
            def emit(context: Any, b: Any, sig: Any, values: Any) -> Any:
                tuples = [isinstance(a, types.UniTuple) for a in args]
                parts = [cgutils.unpack_tuple(b, v) if t else v for t, v in zip(tuples, values, strict=True)]
                made = build(b, *parts)
                if isinstance(result, types.UniTuple):
                    return context.make_tuple(b, result, made)
                return context.get_dummy_value() if result is types.void else made

            return (result(*args), emit) if len(given) == len(args) else None

        typed.__name__ = typed.__qualname__ = build.__name__
        typed.__doc__ = build.__doc__
        # numba sees the parameters of `build`, not "*given".
        vars(typed)["__signature__"] = inspect.signature(build)
        return intrinsic(typed)

    return wrap


def call(b: Any, name: str, result: ir.Type, *args: Any) -> Any:
    """Emit a call of the LLVM intrinsic `name`."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), args)


def const(kind: ir.VectorType, value: Any) -> ir.Constant:
    """A constant with all lanes alike."""
    return ir.Constant(kind, [value] * kind.count)


def spread(b: Any, x: Any, count: int = 8) -> Any:
    """All lanes alike, of a scalar."""
    kind = ir.VectorType(x.type, count)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), x, I32(0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, count), [0] * count))


def at(b: Any, p: Any, kind: ir.Type) -> Any:
    """The address `p` as a pointer."""
    return b.inttoptr(p, kind.as_pointer())


def read(b: Any, p: Any, kind: ir.Type) -> Any:
    """Emit an unaligned load."""
    load = b.load(at(b, p, kind))
    load.align = 1
    return load


def write(b: Any, p: Any, value: Any) -> None:
    """Emit an unaligned store."""
    b.store(value, at(b, p, value.type)).align = 1


# -- memory ------------------------------------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator]
def addr(_: Any, array: Any) -> Any:
    """Address of an array's first element. The array must be an argument of the kernel that Python calls."""

    def emit(context: Any, b: Any, sig: Any, values: Any) -> Any:
        data = context.make_array(sig.args[0])(context, b, values[0]).data
        return b.ptrtoint(data, I64)

    return types.int64(array), emit


@op(types.void, Addr)
def prefetch(b: Any, p: Any) -> None:
    """Bring the cache line of p near; any address is allowed."""
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    b.call(cgutils.get_or_insert_function(b.module, kind, name), [at(b, p, I8), I32(0), I32(2), I32(1)])


def _getter(kind: ir.Type, result: Any, signed: bool, doc: str) -> Any:
    def get(b: Any, p: Any) -> Any:
        value = read(b, p, kind)
        if kind in (F32, I32):
            return value
        return b.sext(value, I32) if signed else b.zext(value, I32)

    get.__doc__ = doc
    return op(result, Addr)(get)


@op(types.CPointer(types.float32), Addr)
def floats(b: Any, p: Any) -> Any:
    """p as a pointer for `numba.carray`, to hand rows to functions that take arrays."""
    return at(b, p, F32)


@op(types.int64, Addr)
def get_i64(b: Any, p: Any) -> Any:
    """The int64 at p."""
    return read(b, p, I64)


get_f32 = _getter(F32, types.float32, True, "The float32 at p.")
get_i32 = _getter(I32, types.int32, True, "The int32 at p.")
get_u16 = _getter(I16, types.int32, False, "The uint16 at p.")
get_i8 = _getter(I8, types.int32, True, "The int8 at p.")
get_u8 = _getter(I8, types.int32, False, "The uint8 at p.")


@op(types.void, Addr, types.float32)
def put_f32(b: Any, p: Any, x: Any) -> None:
    """Store a float32 at p."""
    write(b, p, x)


@op(types.void, Addr, types.int32)
def put_i32(b: Any, p: Any, x: Any) -> None:
    """Store an int32 at p."""
    write(b, p, x)


@op(types.void, Addr, types.int64)
def put_i64(b: Any, p: Any, x: Any) -> None:
    """Store an int64 at p."""
    write(b, p, x)


@op(types.float64, Addr)
def get_f64(b: Any, p: Any) -> Any:
    """The float64 at p."""
    return read(b, p, ir.DoubleType())


@op(types.void, Addr, types.int32)
def put_u8(b: Any, p: Any, x: Any) -> None:
    """Store the low byte of x at p."""
    write(b, p, b.trunc(x, I8))


@op(Ints, Addr)
def load_i(b: Any, p: Any) -> Any:
    """32 bytes at p."""
    return read(b, p, I32X8)


@op(types.void, Addr, Ints)
def store_i(b: Any, p: Any, v: Any) -> None:
    """Store 32 bytes at p."""
    write(b, p, v)


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


@op(Ints, Addr)
def load_u8x8(b: Any, p: Any) -> Any:
    """8 uint8 at p as int32 lanes."""
    return b.zext(read(b, p, ir.VectorType(I8, 8)), I32X8)


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


@op(types.int32, Ints, types.int32)
def lane_i(b: Any, v: Any, lane: Any) -> Any:
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
