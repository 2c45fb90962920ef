// Sums over a block of BLOCK_THREADS threads, in a fixed order.

#include "warp.cuh"

// The sum of v over the block, in every thread.
template <int BLOCK_SIZE>
__device__ __forceinline__ double block_sum(double v) {
    __shared__ double parts[BLOCK_SIZE / 32];
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(WARP_ALL, v, distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    double sum = 0.0;
    for (int i = 0; i < BLOCK_SIZE / 32; ++i) sum += parts[i];
    // The next sum may write parts.
    __syncthreads();
    return sum;
}
