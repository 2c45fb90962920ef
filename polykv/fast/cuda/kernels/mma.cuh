// Tensor-core products, asynchronous copies and byte selection, as the hardware has them (PTX ISA 8, sections
// "Multiply-and-accumulate", "cp.async", "prmt"). Products of bytes are in mma_s8.cuh. Fragments are per lane: g = lane / 4, t = lane % 4.

#include "half.cuh"
#include "mma_s8.cuh"

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define BELOW_ALL (-__int_as_float(0x7F800000))
// A query whose largest dim is no more than that is as good as 0: what makes it 1024 has to be a float32, and its inverse too.
#define FAINT 1e-33f

// D[16][8] += A[16][16] B[16][8] of halves. a0: A[g][2t, 2t + 1], a1: A[g + 8][2t..], a2: A[g][8 + 2t..], a3: A[g + 8][8 + 2t..];
// b0: B[2t, 2t + 1][g], b1: B[8 + 2t..][g]; d as above.
__device__ __forceinline__ void mma_f16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of bfloat16.
__device__ __forceinline__ void mma_bf16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// x >> n as a multiplication by 2^(32 - n), for n from 1 to 31: the integer pipe is what decoding keeps busy, the pipe that
// multiplies has time. `power` has to be unknown to the compiler, or it makes a shift of it again.
__device__ __forceinline__ u32 down(u32 x, u32 power) {
    u32 y;
    asm("mul.hi.u32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(power));
    return y;
}

// Byte i of the result is byte (nibble i of sel) of the eight bytes hi:lo; a nibble above 7 gives copies of that byte's sign
// instead. (__byte_perm ignores the top bits, and pays for it with an instruction.)
__device__ __forceinline__ u32 pick(u32 lo, u32 hi, u32 sel) {
    u32 y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(lo), "r"(hi), "r"(sel));
    return y;
}

// start and the products of four bytes without sign; and of two halves of x with the lower two bytes of `by`.
__device__ __forceinline__ u32 bytes_times(u32 x, u32 by, u32 start) {
    u32 y;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(by), "r"(start));
    return y;
}
__device__ __forceinline__ u32 halves_times(u32 x, u32 by, u32 start) {
    u32 y;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(by), "r"(start));
    return y;
}

// x times a power of two, and start, as long as all of these and the result are whole numbers below 2^24: floats with such bits,
// most of them denormal, grow evenly with them. Both pipes that multiply can do this, at twice the rate of a shift.
__device__ __forceinline__ u32 scaled(u32 x, float power, u32 start) {
    float y;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(__uint_as_float(x)), "f"(power), "f"(__uint_as_float(start)));
    return __float_as_uint(y);
}

__device__ __forceinline__ float power2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// 16 bytes, past the first-level cache.
__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

// 4, 8 or 16 bytes.
template <int BYTES> __device__ __forceinline__ void copy_async(u32 to, const void* from) {
    if constexpr (BYTES == 16) copy16(to, from);
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES));
}

__device__ __forceinline__ void copies_sent() { asm volatile("cp.async.commit_group;"); }

// Wait until all but the newest N groups of this thread's copies have arrived.
template <int N> __device__ __forceinline__ void copies_but() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

// A barrier of `threads` threads; 0 is __syncthreads.
__device__ __forceinline__ void meet(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrive at such a barrier, and go on.
__device__ __forceinline__ void arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// 16 bytes from memory, in the order of the source: before what is copied behind it.
__device__ __forceinline__ float4 loaded16(const float* from) {
    float4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

// Four 8 x 8 matrices of halves: lane 8 i + r says where row r of matrix i is, lane (g, t) gets words t of rows g.
__device__ __forceinline__ uint4 matrices(u32 at) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ uint4 shared16(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 shared8(u32 at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ u32 shared2(u32 at) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ u32 shared4(u32 at) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ void put8(u32 at, u32 x, u32 y) { asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory"); }

__device__ __forceinline__ void put4(u32 at, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory"); }

// Transpose an 8 x 8 matrix of halves: in, lane (g, t) has row g, columns 2t and 2t + 1; out, row and column exchanged.
__device__ __forceinline__ u32 transpose(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// threadIdx.x, read again: what is computed from it after a loop does not stay in registers all the way through.
__device__ __forceinline__ int thread_again() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

// Largest and sum over the eight lanes of a query.
__device__ __forceinline__ float query_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

__device__ __forceinline__ float query_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}
