"""Calls by address, which keep compiled code apart.

numba compiles a kernel together with everything it calls, again at every level of calls. The weight kernels are called
from many places, so those call them by address: each is compiled once, when it is first needed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.simd_core import I64, intrinsic, types


@cache
def entry(kernel: Any, arguments: int) -> int:
    """Address of a kernel that takes so many integers and returns nothing; compiled, or read from the disk cache, now.

    A call by address has no way to report an error, so the kernel must not raise any.
    """
    signature = (types.int64,) * arguments
    kernel.compile(signature)
    compiled = kernel.overloads[signature]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name))


@intrinsic  # type: ignore[untyped-decorator]
def invoke(_: Any, address: Any, arguments: Any) -> Any:
    """Call the kernel at `address` (see `entry`) with a tuple of integers."""

    def emit(context: Any, b: Any, sig: Any, values: Any) -> Any:
        kinds = list(sig.args[1])
        given = [b.extract_value(values[1], i) for i in range(len(kinds))]
        wide = [context.cast(b, v, kind, types.int64) for v, kind in zip(given, kinds, strict=True)]
        function = ir.FunctionType(ir.VoidType(), [I64] * len(wide)).as_pointer()
        b.call(b.inttoptr(values[0], function), wide)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), emit
