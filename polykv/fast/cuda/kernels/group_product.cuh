// Products of four warps, 16 rows each, with operands in registers and in shared memory: by `wgmma` (SHARED_WGMMA), or by
// each warp for itself. B lies in 8 x 8 matrices, 128 bytes each: row n, eight values along k. They are ALONG_K bytes apart
// along k, and ALONG_N along n; both are no multiples of 128 in a way that lets eight lanes write to eight banks' groups.
//
//     products_begin();  product(d, a, b, false); product(d, a, b, true); ...  products_sent();  products_done(d);

#if SHARED_WGMMA
#include "wgmma.cuh"

__device__ __forceinline__ void products_begin() { wgmma_begin(); }
__device__ __forceinline__ void products_sent() { wgmma_sent(); }
// What was begun before is done, but for the newest N groups; d: results.
template <int N, int OCTETS> __device__ __forceinline__ void products_but(float (&d)[OCTETS][4]) {
    wgmma_but<N>();
    wgmma_ready(d);
}

template <int ALONG_K, int ALONG_N, int OCTETS>
__device__ __forceinline__ void product(float (&d)[OCTETS][4], const u32 (&a)[4], u32 b, bool add) {
    constexpr int NOW = OCTETS >= 16 ? 16 : OCTETS >= 8 ? 8 : 4;
    float(&first)[NOW][4] = *(float(*)[NOW][4])d;
    const auto matrix = wgmma_matrix(b, ALONG_K, ALONG_N);
    if constexpr (NOW == 16) wgmma_128(first, a, matrix, add);
    else if constexpr (NOW == 8) wgmma_64(first, a, matrix, add);
    else wgmma_32(first, a, matrix, add);
    if constexpr (OCTETS > NOW) product<ALONG_K, ALONG_N>(*(float(*)[OCTETS - NOW][4])(d + NOW), a, b + NOW * ALONG_N, add);
}

#else

__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_sent() {}
template <int N, int OCTETS> __device__ __forceinline__ void products_but(float (&)[OCTETS][4]) {}
__device__ __forceinline__ void wgmma_sees() {}
template <int N> __device__ __forceinline__ void more_registers() {}
template <int N> __device__ __forceinline__ void fewer_registers() {}

template <int ALONG_K, int ALONG_N, int OCTETS>
__device__ __forceinline__ void product(float (&d)[OCTETS][4], const u32 (&a)[4], u32 b, bool add) {
    // Lane 8 i + r says where row r of matrix i is: those of two octets of n, each with both octets of k.
    const int lane = threadIdx.x % 32;
    const u32 own = b + lane / 16 * ALONG_N + lane / 8 % 2 * ALONG_K + lane % 8 * 16;
#pragma unroll
    for (int o = 0; o < OCTETS; o += 2) {
        const uint4 w = matrices(own + o * ALONG_N);
        if (!add)
#pragma unroll
            for (int e = 0; e < 8; ++e) d[o + e / 4][e % 4] = 0;
        mma_f16(d[o], a[0], a[1], a[2], a[3], w.x, w.y);
        mma_f16(d[o + 1], a[0], a[1], a[2], a[3], w.z, w.w);
    }
}
#endif
