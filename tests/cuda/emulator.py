"""Kernels on the host: a block's threads as coroutines, so that whole kernels run without a GPU, slowly.

A file is compiled by g++ with what CUDA gives put before it. Threads run in turns; one that meets others (a barrier, an
exchange between lanes, a product of tensor cores) waits until all of its warp or block have come. Blocks run one after
the other. Files that hold instructions are replaced (`host.HALF`, `host.MEMORY`, and below).
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import host
import numpy as np
from instructions import BULK, HALF_PAIRS, TENSOR, TURNS, WGMMA

from polykv.fast.cuda.source import Defines, source

THREADS = """
#include <ucontext.h>
#include <vector>
using std::min;
using std::max;
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;
struct Meeting { int members = 0, arrived = 0; long round = 0; };
struct Thread { ucontext_t context; unsigned id; bool done, waited; };
#define STACK (1 << 16)
// Every kernel is a library of its own, and there are hundreds: they share the stacks of threads.
static char* stacks;
static std::vector<Thread> threads;
static ucontext_t home;
static Thread* running;
static Meeting whole, warps[32];
static void (*body)();

static void release(Meeting& m) {
    if (m.members > 0 && m.arrived >= m.members) { m.arrived = 0; ++m.round; }
}
static void meet(Meeting& m) {
    const long round = m.round;
    ++m.arrived;
    release(m);
    while (m.round == round) {
        Thread* me = running;
        swapcontext(&me->context, &home);
    }
}
static void start() {
    body();
    running->done = true;
    for (Meeting* m : {&whole, &warps[running->id / 32]}) { --m->members; release(*m); }
    swapcontext(&running->context, &home);
}
// Memory that the kernel before writes: what threads find that have not waited for it, and the others.
struct Late { char* at; const char *old, *fresh; size_t size; };
extern "C" { Late late[2] = {}; }
static void arrive(bool fresh) {
    static bool now = true;
    if (now == fresh) return;
    now = fresh;
    for (const Late& l : late)
        if (l.size) memcpy(l.at, fresh ? l.fresh : l.old, l.size);
}
static void run_block() {
    const unsigned n = blockDim.x;
    whole = Meeting();
    whole.members = n;
    for (Meeting& m : warps) m = Meeting();
    threads.resize(n);
    for (unsigned i = 0; i < n; ++i) {
        Thread& t = threads[i];
        ++warps[i / 32].members;
        t.id = i;
        t.done = t.waited = false;
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = stacks + (size_t)i * STACK;
        t.context.uc_stack.ss_size = STACK;
        t.context.uc_link = nullptr;
        makecontext(&t.context, start, 0);
    }
    for (bool some = true; some;) {
        some = false;
        for (Thread& t : threads)
            if (!t.done) {
                running = &t;
                threadIdx = {t.id, 0, 0};
                arrive(t.waited);
                swapcontext(&home, &t.context);
                some = true;
            }
    }
}

static void __syncthreads() { meet(whole); }
static void __syncwarp() { meet(warps[threadIdx.x / 32]); }
static char slots[1024][64];
// What every lane of the warp gives, to be read until the next exchange.
template <typename T> static const char (*given(const T& v))[64] {
    Meeting& warp = warps[threadIdx.x / 32];
    meet(warp);
    memcpy(slots[threadIdx.x], &v, sizeof v);
    meet(warp);
    return slots + threadIdx.x / 32 * 32;
}
template <typename T> static T taken(const char (*all)[64], int lane) {
    T v;
    memcpy(&v, all[lane], sizeof v);
    return v;
}
template <typename T> static T __shfl_xor_sync(unsigned, T v, int distance) {
    return taken<T>(given(v), (threadIdx.x % 32) ^ distance);
}
template <typename T> static T __shfl_sync(unsigned, T v, int lane) { return taken<T>(given(v), lane); }
template <typename T> static T __shfl_up_sync(unsigned, T v, int distance) {
    const int lane = threadIdx.x % 32;
    return taken<T>(given(v), lane >= distance ? lane - distance : lane);
}
template <typename F> static int over_warp(int v, int start, F with) {
    const auto all = given(v);
    for (int i = 0; i < 32; ++i) start = with(start, taken<int>(all, i));
    return start;
}
static int __reduce_min_sync(unsigned, int v) { return over_warp(v, v, [](int a, int b) { return min(a, b); }); }
static int __reduce_max_sync(unsigned, int v) { return over_warp(v, v, [](int a, int b) { return max(a, b); }); }
static int __any_sync(unsigned, int v) { return over_warp(v, 0, [](int a, int b) { return a | b; }); }
static void atomicAnd(unsigned* at, unsigned v) { *at &= v; }
static void atomicOr(unsigned* at, unsigned v) { *at |= v; }
template <typename T> static T atomicAdd(T* at, T v) { const T old = *at; *at += v; return old; }
template <typename T> static T atomicAnd(T* at, T v) { const T old = *at; *at &= v; return old; }
template <typename T> static T atomicOr(T* at, T v) { const T old = *at; *at |= v; return old; }
template <typename T> static T __ldg(const T* at) { return *at; }
static float room[1 << 16];
// Dynamic shared memory of the launch. What lies behind it is marked, and must stay so.
static unsigned shared_bytes;
template <typename T, size_t N> static void mark(T (&all)[N]) {
    memset((char*)all + shared_bytes, 0xFF, sizeof all - shared_bytes);
}
template <typename T, size_t N> static bool marked(const T (&all)[N]) {
    const char *at = (const char*)all + shared_bytes, *end = (const char*)all + sizeof all;
    return at == end || (*at == (char)0xFF && !memcmp(at, at + 1, end - at - 1));
}
"""

# Of a block's threads, each as STACK has it.
STACKS = np.empty(1024 << 16, np.uint8)

MMA = """
// Fragments as the PTX manual has them: lane 4 g + q gives rows g and g + 8 of a, column g of b.
static void mma_s8(int (&c)[4], const unsigned* a, const unsigned* b, int halves) {
    struct Given { unsigned a[4], b[2]; } mine = {};
    memcpy(mine.a, a, 8 * halves);
    memcpy(mine.b, b, 4 * halves);
    const auto all = given(mine);
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i)
        for (int half = 0; half < halves; ++half)
            for (int word = 0; word < 4; ++word) {
                const auto left = taken<Given>(all, 4 * g + word);
                const auto right = taken<Given>(all, 4 * (2 * q + (i & 1)) + word);
                c[i] = __dp4a((int)left.a[2 * half + (i >> 1)], (int)right.b[half], c[i]);
            }
}
static void mma_s8_32(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    const unsigned a[4] = {a0, a1, a2, a3}, columns[2] = {b.x, b.y};
    mma_s8(c, a, columns, 2);
}
static void mma_s8_16(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
    const unsigned a[2] = {a0, a1};
    mma_s8(c, a, &b, 1);
}
static void
mma_s8_32_from(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    memcpy(d, c, sizeof d);
    mma_s8_32(d, a0, a1, a2, a3, b);
}
static void
mma_u8_32_from(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    // Bytes without sign are 128 more than those with their upper bit turned.
    const unsigned top = 0x80808080u, all = 0x01010101u;
    mma_s8_32_from(d, c, a0 ^ top, a1 ^ top, a2 ^ top, a3 ^ top, b);
    int sums[4] = {};
    mma_s8_32(sums, all, all, all, all, b);
    for (int i = 0; i < 4; ++i) d[i] += 128 * sums[i];
}
static void mma_s8_16_from(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
    memcpy(d, c, sizeof d);
    mma_s8_16(d, a0, a1, b);
}
static void mma_s8_64_of_two(int (&c)[4], unsigned a0, unsigned a1, const unsigned (&b)[4]) {
    struct Given { unsigned a[2], b[4]; } mine = {{a0, a1}, {b[0], b[1], b[2], b[3]}};
    const auto all = given(mine);
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i)
        for (int two = 0; two < 16; ++two) {
            const Given left = taken<Given>(all, 4 * g + two % 8 / 2);
            const Given right = taken<Given>(all, 4 * (2 * q + i % 2) + two % 4);
            for (int k = 0; k < 2; ++k) {
                const unsigned weight = left.a[two / 8] >> 16 * (two % 2) + 8 * k;
                c[i] += (signed char)weight * (signed char)(right.b[two / 4] >> 16 * (i / 2) + 8 * k);
            }
        }
}
static void keep_in_register(int&) {}
static int two_times(unsigned word, int by, int start) { return start + by * ((short)word + ((int)word >> 16)); }
"""
MAX_NAN = "inline float max_nan(float a, float b) { return a != a || a > b ? a : b; }"
HALF_PAIR = """
inline unsigned f32_to_f16x2(float a, float b) { return f32_to_f16(a) | (unsigned)f32_to_f16(b) << 16; }
inline unsigned f32_to_bf16x2(float a, float b) { return f32_to_bf16(a) | (unsigned)f32_to_bf16(b) << 16; }
"""
FOLLOW = """
static void kernel_before() { arrive(running->waited = true); }
template <typename... T> static void follows(T*&...) { kernel_before(); }
"""
INSTEAD = {
    "follow.cuh": FOLLOW,
    "half.cuh": host.HALF + HALF_PAIR,
    "memory.cuh": host.MEMORY,
    "mma_s8.cuh": MMA,
    "max_nan.cuh": MAX_NAN,
    "mma.cuh": TENSOR,
    "half_pairs.cuh": HALF_PAIRS,
    "wgmma.cuh": WGMMA,
    "bulk.cuh": BULK,
    "turns.cuh": TURNS,
}


class Kernel:
    """A kernel of a file, callable as a function of CuPy is."""

    def __init__(self, library: ctypes.CDLL, kinds: list[str]) -> None:
        self._run, self._kinds, self._library = library.run_grid, kinds, library
        self.ptr = 0

    @contextmanager
    def late(self, *arrays: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Iterator[None]:
        """In it the kernel before writes these: (array, what threads find there that do not wait for it, and those that
        do)."""
        places = (ctypes.c_size_t * 8).in_dll(self._library, "late")
        places[: 4 * len(arrays)] = [n for each in arrays for n in (*(a.ctypes.data for a in each), each[0].nbytes)]
        yield
        places[:] = [0] * 8

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        assert len(args) == len(self._kinds), "as many arguments as the kernel has"
        cells = [argument(a, kind) for a, kind in zip(args, self._kinds, strict=True)]
        pointers = (ctypes.c_void_p * len(cells))(*(c.ctypes.data for c in cells))
        x, y, *_ = (*grid, 1)
        inside = self._run(x, y, block[0], shared_mem, pointers, ctypes.c_void_p(STACKS.ctypes.data))
        assert inside, f"something was written behind {shared_mem} bytes of shared memory"


def argument(value: Any, kind: str) -> np.ndarray:
    """The bytes that the kernel receives; the type must be the one that it declares."""
    if kind.endswith("*"):
        # As CuPy has it, an empty array lies nowhere: a kernel that reads it all the same does not come far.
        address = (value.ctypes.data if value.size else 0) if isinstance(value, np.ndarray) else int(value)
        return np.array([address], np.uint64)
    types = {"int": np.int32, "u32": np.uint32, "float": np.float32, "double": np.float64, "long long": np.int64}
    assert np.asarray(value).dtype == types[kind], f"{type(value).__name__} for {kind}"
    return np.array([value])


@cache
def compiled(text: str, entry: str, folder: Path) -> Kernel:
    """The kernel `entry` of a text that `pasted` made."""
    found = re.search(rf"\b{entry}\s*\(([^)]*)\)\s*\{{", text)
    assert found, f"no function {entry}"
    kinds = [
        re.sub(r"\bconst\b|__restrict__|\w+$", "", p.strip()).strip().replace(" *", "*") for p in found[1].split(",")
    ]
    values = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(kinds))
    dynamic = "memory" if "uint4 memory[" in text else "room"
    text += f"""
static void** arguments;
static void call() {{ {entry}({values}); }}
extern "C" int run_grid(unsigned x, unsigned y, unsigned n, unsigned shared, void** p, char* of_threads) {{
    arguments = p;
    stacks = of_threads;
    shared_bytes = shared;
    mark({dynamic});
    body = call;
    gridDim = {{x, y, 1}};
    blockDim = {{n, 1, 1}};
    for (unsigned j = 0; j < y; ++j)
        for (unsigned i = 0; i < x; ++i) {{
            blockIdx = {{i, j, 0}};
            run_block();
        }}
    return marked({dynamic});
}}
"""
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    library = folder / f"{name}.so"
    if not library.is_file():
        (folder / f"{name}.cpp").write_text(host.NAMES + THREADS + text)
        command = ["g++", "-std=c++17", "-O1", "-w", "-ffp-contract=off", *host.ALIGNED, "-shared", "-fPIC"]
        done = subprocess.run([*command, "-o", library, folder / f"{name}.cpp"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
    return Kernel(ctypes.CDLL(str(library)), kinds)


def pasted(file: str, defines: Defines) -> str:
    """The text of a kernel for the host."""
    return (
        source(file, defines, instead=INSTEAD)
        .replace("extern __shared__ __align__(1024)", "extern")
        .replace("extern __shared__", "extern")
    )
