// Products of four warps, 16 rows each, with operands in registers and in shared memory: by `wgmma` (SHARED_WGMMA), or by
// each warp for itself. B lies in patches of eight rows n and 64 bytes, 32 values along k, in the order of Hopper's swizzle of
// 64 bytes: 16 bytes number c of row r lie at place c ^ r / 2 of their row. So lanes that have 16 bytes of two rows in a row
// each write to all banks, and so do those who read eight rows. Patches begin at multiples of 512 bytes, those of the next
// eight rows behind them.
//
//     products_begin();  product(d, a, b, 0, false); product(d, a, b, 2, true); ...  products_sent();  products_but<0>(d);

constexpr int PATCH = 512;

// Where 16 bytes number `octet` along k of row n lie.
__device__ __forceinline__ int in_patches(int n, int octet) { return n / 8 * PATCH + n % 8 * 64 + (octet ^ n % 8 / 2) * 16; }

// D[64][8 OCTETS] (+)= A[64][16] B of octets `along` and `along` + 1 along k, 0 or 2; b: in units of 16 bytes. Of a warp alone:
template <int OCTETS> __device__ __forceinline__ void product_of_warp(float (&d)[OCTETS][4], const u32 (&a)[4], u32 b, int along, bool add) {
    // Lane 8 i + r says where row r of matrix i is: those of two octets of n, each with both octets of k.
#if __CUDA_ARCH__ == 900
    // Beside products of warpgroups this is for tests: what is kept of it for the next product had no register left.
    const int lane = thread_again() % 32;
#else
    const int lane = threadIdx.x % 32;
#endif
    const u32 own = 16 * b + in_patches(lane / 16 * 8 + lane % 8, along + lane / 8 % 2);
#pragma unroll
    for (int o = 0; o < OCTETS; o += 2) {
        const uint4 w = matrices(own + o * PATCH);
        if (!add)
#pragma unroll
            for (int e = 0; e < 8; ++e) d[o + e / 4][e % 4] = 0;
        mma_f16(d[o], a[0], a[1], a[2], a[3], w.x, w.y);
        mma_f16(d[o + 1], a[0], a[1], a[2], a[3], w.z, w.w);
    }
}

#if SHARED_WGMMA
#include "wgmma.cuh"

__device__ __forceinline__ void products_begin() { wgmma_begin(); }
__device__ __forceinline__ void products_sent() { wgmma_sent(); }
// What was begun before is done, but for the newest N groups; d: results.
template <int N, int OCTETS> __device__ __forceinline__ void products_but(float (&d)[OCTETS][4]) {
    wgmma_but<N>();
    wgmma_ready(d);
}
template <int OCTETS> __device__ __forceinline__ void products_ready(float (&d)[OCTETS][4]) { wgmma_ready(d); }
// The same as products_but<0>, such that no compiler sees that it is.
template <int OCTETS> __device__ __forceinline__ void products_over(float (&d)[OCTETS][4]) {
    wgmma_over();
    wgmma_ready(d);
}

// The same of four warps.
template <int OCTETS> __device__ __forceinline__ void product(float (&d)[OCTETS][4], const u32 (&a)[4], u32 b, int along, bool add) {
    constexpr int NOW = OCTETS >= 16 ? 16 : OCTETS >= 8 ? 8 : 4;
    float(&first)[NOW][4] = *(float(*)[NOW][4])d;
    const auto matrix = wgmma_matrix(b + along, PATCH / 16);
    if constexpr (NOW == 16) wgmma_128(first, a, matrix, add);
    else if constexpr (NOW == 8) wgmma_64(first, a, matrix, add);
    else wgmma_32(first, a, matrix, add);
    if constexpr (OCTETS > NOW) product(*(float(*)[OCTETS - NOW][4])(d + NOW), a, b + NOW * PATCH / 16, along, add);
}

#else

__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_sent() {}
template <int N, int OCTETS> __device__ __forceinline__ void products_but(float (&)[OCTETS][4]) {}
template <int OCTETS> __device__ __forceinline__ void products_over(float (&)[OCTETS][4]) {}
__device__ __forceinline__ void wgmma_sees() {}
template <int N> __device__ __forceinline__ void more_registers() {}
template <int N> __device__ __forceinline__ void fewer_registers() {}

template <int OCTETS> __device__ __forceinline__ void products_ready(float (&)[OCTETS][4]) {}

template <int OCTETS> __device__ __forceinline__ void product(float (&d)[OCTETS][4], const u32 (&a)[4], u32 b, int along, bool add) {
    product_of_warp(d, a, b, along, add);
}
#endif
