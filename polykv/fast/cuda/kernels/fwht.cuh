// The Hadamard transform of Sylvester's matrix in registers: a warp holds FWHT_SIZE values, value 32 i + lane in v[i].
//
// Stages of distance 1 to 16 are exchanges between lanes, the others pairs of registers; each is (a, b) -> (a + b,
// a - b), in the order of polykv/ref/fwht.py, so that float32 results are the same.

#include "warp.cuh"

template <int N>
__device__ __forceinline__ void fwht_warp(float (&v)[N]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float other = __shfl_xor_sync(WARP_ALL, v[i], distance);
            v[i] = (lane & distance) ? other - v[i] : v[i] + other;
        }
#pragma unroll
    for (int distance = 1; distance < N; distance *= 2)
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (i & distance) continue;
            const float a = v[i], b = v[i + distance];
            v[i] = a + b;
            v[i + distance] = a - b;
        }
}
