"""512-bit vectors inside kernels: 16 lanes. Processors without AVX-512 do them in halves, with the same results.

Plain arithmetic needs no care: LLVM splits it. What is named here are the instructions that exist for some widths only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from polykv.fast.cpu.simd_core import (
    F32,
    F32X8,
    I16,
    I16X16,
    I32,
    I32X8,
    Level,
    call,
    features,
    level,
)
from polykv.fast.cpu.simd_math import HAS_FMA

LEVEL = level()
I32X16, F32X16, F32X4 = ir.VectorType(I32, 16), ir.VectorType(F32, 16), ir.VectorType(F32, 4)
# Products of 16-bit pairs on 512 bits; and bytes picked by the bit (vpermb, vpmultishiftqb, vpermw).
HAS_WIDE = {"avx512f", "avx512bw", "avx512vl", "avx512vnni"} <= features()
HAS_PICK = HAS_WIDE and "avx512vbmi" in features()


def lanes(b: Any, x: Any, y: Any, order: list[int]) -> Any:
    """Emit the lanes `order` of x and y."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(order)), order))


def halves(b: Any, v: Any) -> tuple[Any, Any]:
    """Emit the lower and the upper half."""
    n = v.type.count // 2
    return lanes(b, v, v, list(range(n))), lanes(b, v, v, list(range(n, 2 * n)))


def joined(b: Any, low: Any, high: Any) -> Any:
    """Emit the vector of two halves."""
    return lanes(b, low, high, list(range(2 * low.type.count)))


def multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit x * y + z for any number of lanes, rounded once where the processor can."""
    if HAS_FMA:
        return call(b, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)
    return b.fadd(b.fmul(x, y), z)


def larger(b: Any, x: Any, y: Any) -> Any:
    """Emit the larger in each lane of floats; y when either is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def dot_pairs(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit z + the two products of int16 in every int32 lane, for 8 or 16 lanes."""
    if z.type.count == 16:
        if HAS_WIDE:
            return call(b, "llvm.x86.avx512.vpdpwssd.512", I32X16, z, x, y)
        return joined(b, *[dot_pairs(b, *part) for part in zip(*[halves(b, v) for v in (x, y, z)], strict=True)])
    if LEVEL == Level.VNNI:
        return call(b, "llvm.x86.avx512.vpdpwssd.256", I32X8, z, x, y)
    x, y = b.bitcast(x, I16X16), b.bitcast(y, I16X16)
    if LEVEL == Level.AVX2:
        return b.add(z, call(b, "llvm.x86.avx2.pmadd.wd", I32X8, x, y))
    for half in (0, 1):
        pick = list(range(half, 16, 2))
        z = b.add(z, b.mul(*[b.sext(lanes(b, v, v, pick), I32X8) for v in (x, y)]))
    return z


def fold_lanes(b: Any, vectors: list[Any], join: Callable[[Any, Any, Any], Any]) -> Any:
    """Join the 16 lanes of each of 4 or 8 vectors; lane i of the result is that of vector i.

    Lanes are joined at distances 8, 4, 2, 1: the order is fixed, so float sums repeat bit for bit, next to whichever
    vectors. Together they take a third of the instructions that they would take one by one.
    """
    size = 8
    while len(vectors) > 1:
        # Each vector holds runs of 2 * size lanes; of every run the first half meets the second.
        starts = range(0, 32, 2 * size)
        low = [at + i for at in starts for i in range(size)]
        high = [at + size + i for at in starts for i in range(size)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [join(b, lanes(b, x, y, low), lanes(b, x, y, high)) for x, y in pairs]
        size //= 2
    (v,) = vectors
    while size > 0:
        starts = range(0, v.type.count, 2 * size)
        low = [at + i for at in starts for i in range(size)]
        v = join(b, lanes(b, v, v, low), lanes(b, v, v, [i + size for i in low]))
        size //= 2
    return v


def low_words(b: Any, x: Any, y: Any) -> Any:
    """Emit the low 16 bits of the lanes of x in the lower halves of lanes, those of y in the upper halves."""
    kind = ir.VectorType(I16, 2 * x.type.count)
    words = [2 * (i // 2) + i % 2 * kind.count for i in range(kind.count)]
    return b.bitcast(lanes(b, b.bitcast(x, kind), b.bitcast(y, kind), words), x.type)


def as_floats(b: Any, x: Any) -> Any:
    """Emit int32 lanes as float32."""
    return b.sitofp(x, F32X16 if x.type.count == 16 else F32X8)
