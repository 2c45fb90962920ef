"""Arrays at given addresses, for kernels that are called by address and so take only integers (see `entry`).

Nothing here owns memory: the caller keeps what it points to alive.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from polykv.fast.cpu._jit import kernel

carray: Any = numba.carray  # type: ignore[attr-defined]


def _pointer(kind: Any, bits: ir.Type) -> Any:
    def typed(_: Any, address: Any) -> Any:
        def emit(context: Any, b: Any, sig: Any, values: Any) -> Any:
            return b.inttoptr(values[0], bits.as_pointer())

        return types.CPointer(kind)(types.int64), emit  # type: ignore[no-untyped-call]

    return intrinsic(typed)


_f32 = _pointer(types.float32, ir.FloatType())
_i32 = _pointer(types.int32, ir.IntType(32))
_i64 = _pointer(types.int64, ir.IntType(64))
_f64 = _pointer(types.float64, ir.DoubleType())
_u8 = _pointer(types.uint8, ir.IntType(8))


@kernel()
def floats(address: int, shape: Any) -> Any:
    """float32 array of a shape."""
    return carray(_f32(address), shape)


@kernel()
def doubles(address: int, shape: Any) -> Any:
    """float64 array of a shape."""
    return carray(_f64(address), shape)


@kernel()
def ints(address: int, shape: Any) -> Any:
    """int32 array of a shape."""
    return carray(_i32(address), shape)


@kernel()
def longs(address: int, shape: Any) -> Any:
    """int64 array of a shape."""
    return carray(_i64(address), shape)


@kernel()
def octets(address: int, shape: Any) -> Any:
    """uint8 array of a shape."""
    return carray(_u8(address), shape)
