"""Bit patterns of float32 and float16, and the fused multiply-add, as single instructions inside kernels.

numba has no float16 arithmetic on the CPU and no way to reinterpret a scalar; these intrinsics emit the LLVM
instruction for it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_F32, _F16, _I32, _I16 = ir.FloatType(), ir.HalfType(), ir.IntType(32), ir.IntType(16)


@intrinsic
def f32_bits(typingctx: Any, x: Any) -> Any:
    """The bit pattern of a float32, as uint32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I32)

    return types.uint32(types.float32), codegen


@intrinsic
def bits_f32(typingctx: Any, x: Any) -> Any:
    """The float32 with bit pattern x (uint32)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.uint32), codegen


@intrinsic
def f16_bits(typingctx: Any, x: Any) -> Any:
    """The bit pattern of a float32 rounded to float16 (nearest, ties to even), as uint16."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], _F16), _I16)

    return types.uint16(types.float32), codegen


@intrinsic
def bits_f16(typingctx: Any, x: Any) -> Any:
    """The float16 with bit pattern x (uint16), as float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], _F16), _F32)

    return types.float32(types.uint16), codegen


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a*b + c with one rounding, float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen
