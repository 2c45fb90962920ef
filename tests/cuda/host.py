"""Device functions compiled for the host: the arithmetic of kernels, without a GPU.

The `.cuh` files are C++. With a shim in place of the few files that hold instructions (`half.cuh`, `memory.cuh`) and of
CUDA's names, gcc makes a library of them. Contraction is off on both sides, so results must be equal to the last bit.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from polykv.fast.cuda.source import source

# An address that is no multiple of what is read there ends a kernel on a device, and so it does here.
ALIGNED = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")

NAMES = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#define __device__
#define __forceinline__ inline
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
inline float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
inline int __vimin3_s32(int a, int b, int c) { return std::min(std::min(a, b), c); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const uint64_t both = a | (uint64_t)b << 32;
    unsigned y = 0;
    for (int i = 0; i < 4; ++i) y |= (unsigned)(both >> (8 * ((s >> (4 * i)) & 7)) & 255) << (8 * i);
    return y;
}
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, int by) { return high << by | (uint64_t)low >> (32 - by); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, int by) { return (high | 0ull) << (32 - by) | low >> by; }
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += (int)(int8_t)(a >> (8 * i)) * (int)(int8_t)(b >> (8 * i));
    return c;
}
"""

HALF = """
inline float f16_to_f32(unsigned short bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
inline unsigned short f32_to_f16(float x) { _Float16 h = (_Float16)x; unsigned short y; memcpy(&y, &h, 2); return y; }
inline float bf16_to_f32(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
inline unsigned short f32_to_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    return (unsigned short)(x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
"""

MEMORY = """
template <typename T> inline T load_as(const void* at) {
    // An aligned load on the device: a wrong offset would be a fault there.
    if ((uintptr_t)at % sizeof(T)) __builtin_trap();
    T v; memcpy(&v, at, sizeof v); return v;
}
inline uint4 stream16(const void* at) { return load_as<uint4>(at); }
inline uint2 stream8(const void* at) { return load_as<uint2>(at); }
inline unsigned stream4(const void* at) { return load_as<unsigned>(at); }
inline unsigned short stream2(const void* at) { return load_as<unsigned short>(at); }
inline uint4 cached16(const void* at) { return load_as<uint4>(at); }
inline uint2 cached8(const void* at) { return load_as<uint2>(at); }
inline void touch(const void* at) { load_as<unsigned>(at); }
"""


def build(folder: Path, text: str, instead: Mapping[str, str] | None = None) -> ctypes.CDLL:
    """A library of C++ text, whose `#include "x.cuh"` are files of the kernels, or texts that stand for them."""
    pasted = source("host.cpp", instead={"host.cpp": text, "half.cuh": HALF, "memory.cuh": MEMORY, **(instead or {})})
    (folder / "host.cpp").write_text(NAMES + pasted)
    library = folder / "host.so"
    command = ["g++", "-std=c++17", "-O2", "-w", "-ffp-contract=off", *ALIGNED, "-shared", "-fPIC"]
    done = subprocess.run([*command, "-o", library, folder / "host.cpp"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(str(library))


def pointer(x: np.ndarray) -> ctypes.c_void_p:
    """Its address, as an argument."""
    return ctypes.c_void_p(x.ctypes.data)


def aligned(data: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 256 bytes, as memory of a device does."""
    room = np.zeros(data.size + 256, np.uint8)
    start = -room.ctypes.data % 256
    copy = room[start : start + data.size]
    copy[:] = data.reshape(-1)
    return copy
