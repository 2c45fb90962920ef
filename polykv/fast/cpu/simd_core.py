"""256-bit vectors inside kernels: the types, and how functions on them are made.

numba has no vector type, and what its loop vectorizer makes of packed 4-bit codes is several times slower than the
instructions that processors have for them. Here are two types for kernels, `Ints` (8 int32 lanes, also read as 32
bytes) and `Floats` (8 float32 lanes), and small functions on them, each of which becomes one or a few instructions:

    simd.py         loads, stores, lanes
    simd_math.py    integer and float arithmetic, fp16, exp
    simd_weights.py 8 matrix rows at once: transposing gathers, bit fields, integer dot products

Everything is generic LLVM IR, so it runs on any processor; only where `level()` knows a better instruction is it named.
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
